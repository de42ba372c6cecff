"""Numbers that are symbols: sizes and Python numbers that change from call to call.

Sums, products, quotients and comparisons of them are worked out as expressions; a comparison is decided and guarded.
For everything else the number is taken as the constant it is in this call, which a guard then says.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.values.core import linked, numpy_numbers, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.symbols import SYMBOLIC, Real, RealNode, expression_of
from bothways.symbols.environment import COMPARISONS, INVERSE, readable

if TYPE_CHECKING:
    from bothways.capture.guards.sources import Source
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

ARITHMETIC = frozenset("+ - * // % == != < <= > >=".split())
# The same for numbers with fractions, whose remainders are left to Python.
REAL_ARITHMETIC = frozenset("+ - * / ** == != < <= > >=".split())
# What Python works out before the graph runs where it cannot be left to the graph.
DERIVED = frozenset("/ ** % // & | ^ << >>".split())
# How far an expression may grow, which may double with each turn of a loop: operations, one inside the other and
# altogether. Python's parser has a limit for the former as well.
DEEPEST = {int: 12, float: 120}
HEAVIEST = 64
LARGEST_POWER = 1000  # of two, with some room to what a float holds
UNARY = frozenset({"__neg__", "__pos__"})
SEQUENCES = (str, bytes, bytearray, list, tuple, deque)  # that a number may repeat


class NumberValue(Value):
    """An ``int`` or ``float`` of the program whose value may be another one at the next call; ``obj`` is that of this
    call, where it comes from outside."""

    def __init__(self, content: Any, source: Source | None = None, obj: int | float | None = None) -> None:
        self.content, self.source, self.obj = content, source, obj

    def python_type(self) -> type:
        return int if isinstance(self.content, torch.SymInt) else float

    @property
    def is_unknown(self) -> bool:
        """Whether its value is found only when the program runs."""
        node = self.content.node
        return bool(node.environment.is_unknown(node.expression))

    def constant(self) -> Any:
        return self.python_type()(self.content)

    def _as_constant(self) -> ConstantValue:
        return ConstantValue(self.constant())

    def hash_key(self, tracer: Tracer) -> Hashable:
        if not self.is_unknown and not tracer.options.fullgraph and tracer.symbols.key_varies(self.content):
            tracer.stop("value_changes", "something is kept or found by a number that is another one at each call")
        key: Hashable = self.constant()
        return key

    def describe(self) -> str:
        return f"the number {self.content}"

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return self._as_constant().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return self._as_constant().call_method(tracer, name, args, kwargs)

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.content != 0)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol.endswith("=") and op.symbol not in ARITHMETIC:
            return None  # in place is the same as not, for numbers
        if issubclass(other.python_type(), SEQUENCES) and op.symbol not in COMPARISONS:
            return self._plainly(tracer, op, other, reflected)
        if isinstance(other, linked.LateNumber):
            return other.binary(tracer, op, self, not reflected)
        if not isinstance(other, (ConstantValue, NumberValue)):
            return None
        if isinstance(other, linked.NumpyNumber):
            return other.binary(tracer, op, self, not reflected)
        number: Any = other.content
        if type(number) not in (int, float, torch.SymInt, torch.SymFloat):
            return self._plainly(tracer, op, other, reflected)
        operands = (number, self.content) if reflected else (self.content, number)
        if op.symbol in ARITHMETIC and not any(isinstance(operand, (float, torch.SymFloat)) for operand in operands):
            result = tracer.run_const(op.function, *operands)
        elif op.symbol not in REAL_ARITHMETIC or (op.symbol in ("/", "**") and not _is_safe(op.symbol, *operands)):
            return self._plainly(tracer, op, other, reflected)
        else:
            result = real_result(op.symbol, *operands)
        if isinstance(result, SYMBOLIC) and _is_long(result):
            return self._plainly(tracer, op, other, reflected)
        if not isinstance(result, torch.SymBool):
            return number_value(result)
        return OpenTruth(result) if result.node.is_open else ConstantValue(bool(result))

    def _plainly(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        """The operation on the numbers of this call."""
        if not issubclass(other.python_type(), (int, float, complex, *SEQUENCES, *numpy_numbers.SCALARS)):
            return None
        is_numpys = other.python_type() in numpy_numbers.NUMBERS
        if is_numpys or (op.symbol in DERIVED and issubclass(other.python_type(), (int, float))):
            number = linked.derived(tracer, op.function, [other, self] if reflected else [self, other])
            if number is not None:
                return number
        known = ConstantValue(other.constant()) if isinstance(other, NumberValue) else other
        pair: list[Value] = [known, self._as_constant()]
        left, right = pair if reflected else reversed(pair)
        arithmetic = protocols.compare if op.symbol in protocols.COMPARE else protocols.binary
        return arithmetic(tracer, op.symbol, left, right)

    def unary(self, tracer: Tracer, function: Callable[[Any], Any], method: str) -> Value:
        number = linked.derived(tracer, function, [self]) if method == "__abs__" else None
        if number is not None:
            return number
        if method == "__abs__" and isinstance(self.content, torch.SymInt):
            return number_value(-self.content if self.content < 0 else self.content)
        if method not in UNARY:
            return constant_value(tracer.run_const(function, self.constant()))
        return number_value(function(self.content) if method == "__neg__" else self.content)

    def text(self, tracer: Tracer, conversion: str) -> str:
        return self.format(tracer, "")

    def format(self, tracer: Tracer, spec: str) -> str:
        if not tracer.options.fullgraph:  # a program for each number would be the price of a constant text
            tracer.stop("value_changes", "a number that is another one at each call is made a text")
        return format(self.constant(), spec)

    # After the call.

    def name_hint(self) -> str:
        return "size"

    def rebuild(self, emitter: Emitter) -> str:
        text = emitter.tracer.symbols.text(expression_of(self.content), emitter)
        return f"({text})" if " " in text else text


class OpenTruth(Value):
    """A comparison whose answer is found only when the program runs."""

    told_later = True

    def __init__(self, content: torch.SymBool) -> None:
        self.content = content

    def python_type(self) -> type:
        return bool

    def describe(self) -> str:
        return "the comparison of a number that is known only when the graph runs"

    def truth(self, tracer: Tracer) -> bool:
        number = tracer.symbols.known_as(self.content.node.comparison[0])
        tracer.stop("tensor_branch", f"a decision depends on {number}, known only when it runs")

    def assume(self, tracer: Tracer) -> None:
        """Go on as if it were true."""
        tracer.symbols.assume(*self.content.node.comparison)

    def name_hint(self) -> str:
        return "truth"

    def rebuild(self, emitter: Emitter) -> str:
        difference, question, wanted = self.content.node.comparison
        condition = readable(difference, question if wanted else INVERSE[question])
        sides = [emitter.tracer.symbols.text(side, emitter) for side in (condition.left, condition.right)]
        return f"({sides[0]} {condition.symbol} {sides[1]})"


def number_value(number: Any) -> Value:
    """A result of arithmetic: a symbol, or the constant it turned out to be."""
    return NumberValue(number) if isinstance(number, SYMBOLIC) else ConstantValue(number)


def _is_long(number: Any) -> bool:
    expression = expression_of(number)
    deepest = DEEPEST[int if isinstance(number, torch.SymInt) else float]
    return bool(expression.depth > deepest or expression.weight > HEAVIEST)


def real_result(symbol: str, left: Any, right: Any) -> Any:
    """An operation of which a number with a fraction comes out, or a comparison of such numbers."""
    environment = next(one.node.environment for one in (left, right) if isinstance(one, SYMBOLIC))
    operands = [one.node.expression if isinstance(one, SYMBOLIC) else one for one in (left, right)]
    if symbol in COMPARISONS:
        return environment.decide_real(*operands, symbol)
    return torch.SymFloat(RealNode(environment, Real(symbol, *operands)))


def _is_safe(symbol: str, left: Any, right: Any) -> bool:
    """Whether a quotient or a power is a float whatever the symbols are: nothing is divided by zero, no root taken of a
    negative number, and no power is too large, which Python refuses."""
    if symbol == "/":
        return bool(right != 0)
    if not any(isinstance(one, (float, torch.SymFloat)) for one in (left, right)):
        return False
    return bool(left > 0) and _has_room(left, right)


def _has_room(base: Any, exponent: Any) -> bool:
    """Whether a power stays below the largest float: asked of whichever of the two is a symbol."""
    if not isinstance(exponent, SYMBOLIC):
        if abs(exponent) <= 0.9:
            return True  # a root of any float
        bound = 2.0 ** (LARGEST_POWER / exponent)
        return bool(base <= bound) if exponent > 0 else bool(base >= bound)
    if not isinstance(base, SYMBOLIC):
        digits = math.log2(base)
        bound = LARGEST_POWER / digits if digits else 0
        return not digits or bool(exponent <= math.floor(bound) if digits > 0 else exponent >= math.ceil(bound))
    return bool(base <= 2.0**30) and bool(base >= 2.0**-30) and bool(exponent <= 30) and bool(exponent >= -30)


def extreme_of(tracer: Tracer, name: str, left: Value, right: Value) -> Value | None:
    """``max`` or ``min`` of whole numbers that change, and of those that are read behind the graph; None for others.
    Which one it is may change with every call: how long the longest of a list of texts is."""
    if (late := linked.late_extreme(tracer, name, left, right)) is not None:
        return late
    pair = [left.realize(), right.realize()]
    if not any(isinstance(one, NumberValue) for one in pair):
        return None
    if not all(isinstance(one, (NumberValue, ConstantValue)) and one.python_type() is int for one in pair):
        return None
    return number_value({"max": torch.sym_max, "min": torch.sym_min}[name](*(one.content for one in pair)))  # type: ignore[attr-defined]


def specialise_sizes(tracer: Tracer, tensor: Value, dims: Value | None = None) -> Value:
    """``mark_static`` inside of a compiled function: the sizes are those of this call from here on."""
    tensor = tensor.realize()
    if not isinstance(tensor, linked.TensorValue):
        tracer.stop("call_unknown", f"{tensor.describe()} has no sizes to be static")
    chosen = None if dims is None else protocols.as_constant(tracer, dims)
    shape = tensor.fake.shape
    every = range(len(shape)) if chosen is None else [chosen] if isinstance(chosen, int) else chosen
    for dim in every:
        int(tracer.run_const(shape.__getitem__, dim))
    return ConstantValue(None)
