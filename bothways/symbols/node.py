"""A size as PyTorch's C++ takes it: what ``torch.SymInt`` and ``torch.SymBool`` ask of the object behind them.

Arithmetic gives other nodes. To become a plain number is to specialise, to become a plain truth value is to decide:
both ask the environment, which notes what that assumes. Nothing else turns a symbol into a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bothways.symbols.environment import NEGATIVE, ZERO, Environment
from bothways.symbols.expressions import Expression, Symbol, applied
from bothways.symbols.reals import Real, value_of

Text = str  # some nodes have a method of that name

MODULO_BY_ZERO, DIVISION_BY_ZERO = "integer modulo by zero", "integer division or modulo by zero"


class _Node:
    """What nodes of all kinds answer."""

    kind: type

    def is_int(self) -> bool:
        return self.kind is int

    def is_float(self) -> bool:
        return self.kind is float

    def is_bool(self) -> bool:
        return self.kind is bool

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return True

    def clone(self) -> _Node:
        return self

    def wrap_int(self, value: int) -> SizeNode:
        return SizeNode(self.environment, Expression.of(value))

    def wrap_bool(self, value: bool) -> TruthNode:
        return TruthNode(self.environment, value=value)

    def wrap_float(self, value: float) -> RealNode:
        return RealNode(self.environment, value)

    environment: Environment

    def str(self) -> Text:
        return f"{self}"

    def _graph_repr(self) -> Text:
        return f"{self}"


class SizeNode(_Node):
    """A whole number: an expression over the symbols of an environment."""

    __slots__ = ("_now", "_version", "environment", "origin")
    kind = int

    def __init__(self, environment: Environment, expression: Expression) -> None:
        self.environment, self.origin = environment, expression
        self._now, self._version = expression, -1

    @property
    def expression(self) -> Expression:
        """What it is, by what is known now."""
        if self._version != self.environment.version:
            self._now, self._version = self.environment.simplified(self.origin), self.environment.version
        return self._now

    @property
    def hint(self) -> int:
        """The value of now, for decisions that do not matter for what is right."""
        return self.expression.value(self.environment.values)

    def __repr__(self) -> Text:
        return f"{self.expression}"

    # Arithmetic.

    def _with(self, expression: Expression) -> SizeNode:
        return SizeNode(self.environment, expression)

    def add(self, other: SizeNode) -> SizeNode:
        return self._with(self.expression + other.expression)

    def sub(self, other: SizeNode) -> SizeNode:
        return self._with(self.expression - other.expression)

    def mul(self, other: SizeNode) -> SizeNode:
        return self._with(self.expression * other.expression)

    def neg(self) -> SizeNode:
        return self._with(-self.expression)

    def pos(self) -> SizeNode:
        return self

    def int_floordiv(self, other: SizeNode) -> SizeNode:
        return self._quotient("floordiv", other)

    floordiv = int_floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        return self._quotient("mod", other)

    def _quotient(self, function: Any, other: SizeNode) -> SizeNode:
        if other.eq(self.wrap_int(0)).guard_bool():
            raise ZeroDivisionError(MODULO_BY_ZERO if function == "mod" else DIVISION_BY_ZERO)
        return self._with(applied(function, self.expression, other.expression))

    def sym_max(self, other: SizeNode) -> SizeNode:
        return self._extreme("max", other)

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self._extreme("min", other)

    def _extreme(self, function: Any, other: SizeNode) -> SizeNode:
        return self._with(self.environment.extreme(function, self.expression, other.expression))

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        return self._with(math.prod([self.expression] * other.guard_int(), start=Expression.of(1)))

    def ceil(self) -> SizeNode:
        return self

    floor = round = trunc = ceil

    # Comparisons.

    def _compared(self, question: Any, other: SizeNode, wanted: bool, swapped: bool = False) -> TruthNode:
        left, right = (other, self) if swapped else (self, other)
        return TruthNode(self.environment, (left.expression, right.expression, question, wanted))

    def eq(self, other: SizeNode) -> TruthNode:
        return self._compared(ZERO, other, True)

    def ne(self, other: SizeNode) -> TruthNode:
        return self._compared(ZERO, other, False)

    def lt(self, other: SizeNode) -> TruthNode:
        return self._compared(NEGATIVE, other, True)

    def ge(self, other: SizeNode) -> TruthNode:
        return self._compared(NEGATIVE, other, False)

    def gt(self, other: SizeNode) -> TruthNode:
        return self._compared(NEGATIVE, other, True, swapped=True)

    def le(self, other: SizeNode) -> TruthNode:
        return self._compared(NEGATIVE, other, False, swapped=True)

    # Ways out.

    def is_constant(self) -> bool:
        return self.expression.constant is not None

    def maybe_as_int(self) -> int | None:
        return self.expression.constant

    constant_int = maybe_as_int

    def guard_int(self, file: Any = "", line: int = 0) -> int:
        return self.environment.specialise(self.expression)

    int_ = guard_int

    def guard_float(self, file: Any = "", line: int = 0) -> float:
        return float(self.guard_int())

    def sym_float(self) -> RealNode:
        return RealNode(self.environment, Real("value", self.expression))

    def int_truediv(self, other: SizeNode) -> RealNode:
        return RealNode(self.environment, Real("/", self.expression, other.expression))

    # Layouts, which C++ asks of the first node it finds.

    def is_contiguous(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> TruthNode:
        return self._dense_in(reversed(range(len(sizes))), sizes, strides)

    def is_channels_last_contiguous_2d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> TruthNode:
        return self._dense_in((1, 3, 2, 0), sizes, strides) if len(sizes) == 4 else self.wrap_bool(False)

    def is_channels_last_contiguous_3d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> TruthNode:
        return self._dense_in((1, 4, 3, 2, 0), sizes, strides) if len(sizes) == 5 else self.wrap_bool(False)

    def is_channels_last_strides_2d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> TruthNode:
        return self._ordered((1, 3, 2, 0), sizes, strides) if len(sizes) == 4 else self.wrap_bool(False)

    def is_channels_last_strides_3d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> TruthNode:
        return self._ordered((1, 4, 3, 2, 0), sizes, strides) if len(sizes) == 5 else self.wrap_bool(False)

    def is_non_overlapping_and_dense(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> TruthNode:
        values = [node.hint for node in strides]
        order = sorted(range(len(sizes)), key=lambda dim: (values[dim], sizes[dim].hint))
        return self._dense_in(order, sizes, strides)

    def _dense_in(self, order: Any, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> TruthNode:
        order = list(order)
        if self._follows_sizes(order, sizes, strides) or any(_is(size, 0) for size in sizes):
            return self.wrap_bool(True)
        expected = self.wrap_int(1)
        for dim in order:
            if not _is(sizes[dim], 1):
                if not strides[dim].eq(expected).guard_bool():
                    return self.wrap_bool(False)
                expected = expected.mul(sizes[dim])
        return self.wrap_bool(True)

    def _follows_sizes(self, order: Sequence[int], sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> bool:
        """Whether the strides are those of dense memory by their very expressions, whatever the sizes are."""
        expected = Expression.of(1)
        for dim in order:
            if strides[dim].expression != expected:
                return False
            expected = expected * sizes[dim].expression
        return True

    def _ordered(self, order: Any, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> TruthNode:
        if _is(strides[1], 0):
            return self.wrap_bool(False)
        least = self.wrap_int(0)
        for dim in order:
            if _is(sizes[dim], 0) or strides[dim].lt(least).guard_bool():
                return self.wrap_bool(False)
            if dim == 0 and least.eq(strides[1]).guard_bool():
                return self.wrap_bool(False)
            least = strides[dim]
            if not _is(sizes[dim], 1):
                least = least.mul(sizes[dim])
        return self.wrap_bool(True)


def _is(node: SizeNode, value: int) -> bool:
    return node.eq(node.wrap_int(value)).guard_bool()


class TruthNode(_Node):
    """A comparison that nothing has relied on yet, or a truth value."""

    __slots__ = ("_question", "_value", "environment")
    kind = bool

    def __init__(self, environment: Environment, question: Any = None, value: bool | None = None) -> None:
        self.environment, self._question, self._value = environment, question, value

    @property
    def is_open(self) -> bool:
        """Whether the answer is found only when the program runs."""
        if self._value is not None:
            return False
        return self.known is None and any(map(self.environment.is_unknown, self._question[:2]))

    @property
    def comparison(self) -> tuple[Expression, str, bool]:
        """The difference that is asked about, the question, and the answer for which this is true."""
        left, right, question, wanted = self._question
        return self.environment.simplified(left - right), question, wanted

    @property
    def known(self) -> bool | None:
        """The answer, if it follows from what is known."""
        if self._value is not None:
            return self._value
        left, right, question, wanted = self._question
        answer = self.environment.known_answer(self.environment.simplified(left - right), question)
        return None if answer is None else answer == wanted

    def guard_bool(self, file: Any = "", line: int = 0) -> bool:
        if self._value is None:
            left, right, question, wanted = self._question
            self._value = self.environment.decide(left, right, question) == wanted
        return self._value

    bool_ = expect_true = guard_size_oblivious = guard_or_false = guard_or_true = guard_bool

    def statically_known_true(self, file: Any = "", line: int = 0) -> bool:
        return self.known is True

    def is_constant(self) -> bool:
        return self.known is not None

    def constant_bool(self) -> bool | None:
        return self.known

    def maybe_as_int(self) -> int | None:
        return None

    def sym_and(self, other: TruthNode) -> TruthNode:
        return self.wrap_bool(self.guard_bool() and other.guard_bool())

    def sym_or(self, other: TruthNode) -> TruthNode:
        return self.wrap_bool(self.guard_bool() or other.guard_bool())

    def sym_not(self) -> TruthNode:
        return self.wrap_bool(not self.guard_bool())

    def sym_ite(self, yes: _Node, no: _Node) -> _Node:
        return yes if self.guard_bool() else no

    def __repr__(self) -> Text:
        return f"{self._question if self._value is None else self._value}"


class RealNode(_Node):
    """A number with a fraction: what is computed from symbols when the program runs."""

    __slots__ = ("environment", "expression")
    kind = float

    def __init__(self, environment: Environment, expression: Any) -> None:
        self.environment, self.expression = environment, expression

    @property
    def origin(self) -> Any:
        return self.expression

    @property
    def hint(self) -> float:
        return float(value_of(self.expression, self.environment.values))

    def _with(self, function: Any, other: Any) -> RealNode:
        return RealNode(self.environment, Real(function, self.expression, other.expression))

    def add(self, other: Any) -> RealNode:
        return self._with("+", other)

    def sub(self, other: Any) -> RealNode:
        return self._with("-", other)

    def mul(self, other: Any) -> RealNode:
        return self._with("*", other)

    def float_truediv(self, other: Any) -> RealNode:
        return self._with("/", other)

    truediv = float_truediv

    def float_pow(self, other: Any) -> RealNode:
        return self._with("**", other)

    def neg(self) -> RealNode:
        return RealNode(self.environment, Real("neg", self.expression))

    def sym_float(self) -> RealNode:
        return self

    def _compared(self, symbol: Any, other: Any) -> TruthNode:
        answer = self.environment.decide_real(self.expression, other.expression, symbol)
        return TruthNode(self.environment, value=answer)

    def eq(self, other: Any) -> TruthNode:
        return self._compared("==", other)

    def ne(self, other: Any) -> TruthNode:
        return self._compared("!=", other)

    def lt(self, other: Any) -> TruthNode:
        return self._compared("<", other)

    def le(self, other: Any) -> TruthNode:
        return self._compared("<=", other)

    def gt(self, other: Any) -> TruthNode:
        return self._compared(">", other)

    def ge(self, other: Any) -> TruthNode:
        return self._compared(">=", other)

    def is_constant(self) -> bool:
        return False

    def maybe_as_int(self) -> int | None:
        return None

    def guard_float(self, file: Any = "", line: int = 0) -> float:
        if isinstance(self.expression, (int, float)):
            return float(self.expression)
        return self.environment.specialise_real(self.expression)

    def __repr__(self) -> Text:
        return f"{self.expression}"


def symbol_number(environment: Environment, symbol: Symbol) -> Any:
    """A symbol itself, whatever has become known about it."""
    own = Expression.atom(symbol)
    if type(environment.values[symbol]) is float:
        return torch.SymFloat(RealNode(environment, own))
    return torch.SymInt(SizeNode(environment, own))


def size(environment: Environment, expression: Any) -> Any:
    """An expression as a size: a ``torch.SymInt``, a plain number where it is one, a ``torch.SymFloat`` of floats."""
    if any(type(environment.values[symbol]) is float for symbol in expression.symbols()):
        return torch.SymFloat(RealNode(environment, expression))
    node = SizeNode(environment, expression)
    return torch.SymInt(node) if node.expression.constant is None else node.expression.constant

