"""Sizes in kernels that are known only when they run: expressions over symbols, written the same in any dialect.

Equality is that of expressions: shapes that are not known to be equal are different, which kernels are right for
either way. Any other question is decided for the sizes of now and noted by the environment. What is only about speed
asks for the ``hint``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from bothways.symbols import Atom, Environment, Expression, Real, expression_of, spelled
from bothways.symbols.environment import NEGATIVE, ZERO
from bothways.symbols.expressions import Applied, Symbol, applied


class NotLowered(Exception):
    """The operation has no lowering for these arguments: ATen runs it."""


class SizeNames:
    """The names of symbols, and of quotients and the like, which Python computes before kernels are called."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.computed: dict[Atom, str] = {}
        self._reals: dict[str, str] = {}
        self.written: dict[str, None] = {}  # the names that were written since this was last emptied
        self._equations = environment.equations

    @property
    def are_outdated(self) -> bool:
        """Whether sizes were found to be equal since: those that are there already do not know, and the same size is
        then written in two ways."""
        return self.environment.equations != self._equations

    def size(self, number: Any) -> Any:
        """A symbolic number as kernels take it; anything else as it is."""
        if isinstance(number, torch.SymFloat):
            return Fraction(self, number.node.expression)
        return self.size_of(expression_of(number)) if isinstance(number, torch.SymInt) else number

    def size_of(self, expression: Expression) -> Any:
        expression = self.environment.simplified(expression)
        return Size(self, expression) if expression.constant is None else expression.constant

    def as_value(self, number: Any) -> Any:
        """A whole number as an operand of tensors. What a program computes may be too large for C, as it may be for
        ATen, so Python computes it and hands it over, or raises."""
        if not isinstance(number, Size) or number.expression == Expression.atom(next(number.expression.atoms())):
            return number
        return Size(self, Expression.atom(Applied("max", (number.expression, number.expression))))

    def name(self, atom: Atom) -> str:
        name = atom.key if isinstance(atom, Symbol) else self.computed.setdefault(atom, f"q{len(self.computed)}")
        self.written[name] = None
        return name

    def name_of_real(self, real: Any) -> str:
        """The name of a number with a fraction; that of a symbol is its own."""
        text = str(real)
        name = text if text.isidentifier() else self._reals.setdefault(text, f"v{len(self._reals)}")
        self.written[name] = None
        return name

    def definitions(self) -> list[str]:
        """The Python that computes what is no sum of products."""
        lines = []
        for atom, name in self.computed.items():
            assert isinstance(atom, Applied)
            lines.append(f"{name} = {atom.text([spelled(arg, lambda symbol: symbol.key) for arg in atom.args])}")
        return [*lines, *(f"{name} = {text}" for text, name in self._reals.items())]


class Size:
    """A whole number that is not known yet."""

    __slots__ = ("_names", "expression")

    def __init__(self, names: SizeNames, expression: Expression) -> None:
        self._names, self.expression = names, expression

    @property
    def hint(self) -> int:
        return self.expression.value(self._names.environment.values)

    def at(self, times: int) -> int:
        """What it would be if all symbols were so many times as large."""
        values = self._names.environment.values
        return self.expression.value({symbol: value * times for symbol, value in values.items()})

    @property
    def now(self) -> Any:
        """The same by what is known by now."""
        return self._names.size_of(self.expression)

    def __repr__(self) -> str:
        text = self.expression.text(self._names.name)
        return f"({text})" if " " in text else text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.expression == other.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    def __index__(self) -> int:
        raise NotLowered(f"{self} would have to be a constant")

    def _operand(self, other: Any) -> Expression | None:
        if isinstance(other, Size):
            return other.expression
        if type(other) is float and other.is_integer():
            other = int(other)
        return Expression.of(other) if type(other) is int else None

    def _decided(self, left: Expression | None, right: Expression | None, question: str) -> Any:
        if left is None or right is None:
            return NotImplemented
        return self._names.environment.decide(left, right, question)

    def __bool__(self) -> bool:
        return not self._decided(self.expression, Expression.of(0), ZERO)

    def __lt__(self, other: Any) -> Any:
        return self._decided(self.expression, self._operand(other), NEGATIVE)

    def __gt__(self, other: Any) -> Any:
        return self._decided(self._operand(other), self.expression, NEGATIVE)

    def __le__(self, other: Any) -> Any:
        above = self > other
        return above if above is NotImplemented else not above

    def __ge__(self, other: Any) -> Any:
        below = self < other
        return below if below is NotImplemented else not below

    def __add__(self, other: Any) -> Any:
        if isinstance(other, (float, Fraction)):
            return self.as_fraction("+", _real(other))
        operand = self._operand(other)
        return NotImplemented if operand is None else self._names.size_of(self.expression + operand)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self._names.size_of(-self.expression)

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, (float, Fraction)):
            return self.as_fraction("*", _real(other))
        operand = self._operand(other)
        return NotImplemented if operand is None else self._names.size_of(self.expression * operand)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._applied("floordiv", other)

    def __mod__(self, other: Any) -> Any:
        return self._applied("mod", other)

    def _applied(self, function: str, other: Any) -> Any:
        operand = self._operand(other)
        return NotImplemented if operand is None else self._names.size_of(applied(function, self.expression, operand))

    def larger(self, other: Any) -> Any:
        """The larger of the two, without asking which one that is."""
        return self._extreme("max", other)

    def smaller(self, other: Any) -> Any:
        return self._extreme("min", other)

    def _extreme(self, function: str, other: Any) -> Any:
        operand = self._operand(other)
        if operand is None:
            return NotImplemented
        return self._names.size_of(self._names.environment.extreme(function, self.expression, operand))

    def __rfloordiv__(self, other: int) -> Any:
        return self._names.size_of(applied("floordiv", Expression.of(other), self.expression))

    def __rmod__(self, other: int) -> Any:
        return self._names.size_of(applied("mod", Expression.of(other), self.expression))

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def as_fraction(self, function: str = "value", *others: Any) -> Fraction:
        """What a function gives that has a fraction, of this number and others; by default the number itself."""
        return Fraction(self._names, Real(function, self.expression, *others))

    def __truediv__(self, other: Any) -> Any:
        operand = _real(other)
        return NotImplemented if operand is None else self.as_fraction("/", operand)

    def __rtruediv__(self, other: Any) -> Any:
        operand = _real(other)
        return NotImplemented if operand is None else Fraction(self._names, Real("/", operand, self.expression))


class Fraction:
    """A number with a fraction that follows from symbols: Python computes it before kernels are called."""

    __slots__ = ("_names", "real")

    def __init__(self, names: SizeNames, real: Any) -> None:
        self._names, self.real = names, real

    def __repr__(self) -> str:
        return self._names.name_of_real(self.real)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fraction) and self.real is other.real

    def __hash__(self) -> int:
        return id(self.real)

    def __float__(self) -> float:
        raise NotLowered(f"{self.real} would have to be a constant")

    def __bool__(self) -> bool:
        return bool(self != 0)

    def _decided(self, symbol: str, other: Any) -> Any:
        operand = _real(other)
        return NotImplemented if operand is None else self._names.environment.decide_real(self.real, operand, symbol)

    def __ne__(self, other: object) -> Any:
        return not self == other if isinstance(other, Fraction) else self._decided("!=", other)

    def __lt__(self, other: Any) -> Any:
        return self._decided("<", other)

    def __le__(self, other: Any) -> Any:
        return self._decided("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._decided(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._decided(">=", other)

    def __abs__(self) -> Fraction:
        return -self if self < 0 else self

    def __neg__(self) -> Fraction:
        return Fraction(self._names, Real("neg", self.real))

    def _with(self, function: str, other: Any, reflected: bool = False) -> Any:
        operand = _real(other)
        if operand is None:
            return NotImplemented
        pair = (operand, self.real) if reflected else (self.real, operand)
        return Fraction(self._names, Real(function, *pair))

    def __add__(self, other: Any) -> Any:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("+", other, True)

    def __sub__(self, other: Any) -> Any:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("-", other, True)

    def __mul__(self, other: Any) -> Any:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("*", other, True)

    def __truediv__(self, other: Any) -> Any:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with("/", other, True)

    def __pow__(self, other: Any) -> Any:
        return self._with("**", other)

    def __rpow__(self, other: Any) -> Any:
        return self._with("**", other, True)


def _real(number: Any) -> Any:
    """What a number is in the computation of others; None when it is none."""
    if isinstance(number, Size):
        return number.expression
    if isinstance(number, Fraction):
        return number.real
    return number if isinstance(number, (int, float)) else None


def larger(one: Any, other: Any) -> Any:
    """``max`` of numbers, without asking which one is the larger where that may change."""
    if isinstance(one, Size):
        return one.larger(other)
    return other.larger(one) if isinstance(other, Size) else max(one, other)


def smaller(one: Any, other: Any) -> Any:
    if isinstance(one, Size):
        return one.smaller(other)
    return other.smaller(one) if isinstance(other, Size) else min(one, other)


def as_float(number: Any) -> Any:
    """``float(number)`` of what may not be known yet."""
    if isinstance(number, Size):
        return number.as_fraction()
    return number if isinstance(number, Fraction) else float(number)


def has_fraction(name: str) -> bool:
    """Whether a name is that of a number with a fraction."""
    return name[0] in "fv"


def as_known(number: Any) -> Any:
    """A size with what was found out about its symbols since it was made: a plain number, where that tells it."""
    return number.now if isinstance(number, Size) else number


def size_hint(number: Any) -> int:
    """The value of now, for decisions about speed."""
    return number.hint if isinstance(number, Size) else number


def size_at(number: Any, times: int) -> int:
    """What a size would be if all symbols were so many times as large."""
    return number.at(times) if isinstance(number, Size) else number


class Outline:
    """What a lowering is told about a result: the tensor without data, with sizes as kernels take them."""

    __slots__ = ("_strides", "device", "dtype", "layout", "shape")

    def __init__(self, names: SizeNames, fake: torch.Tensor) -> None:
        self.shape: tuple[Any, ...] = tuple(names.size(number) for number in fake.shape)
        self._strides: tuple[Any, ...] = tuple(names.size(number) for number in fake.stride())
        self.dtype, self.device, self.layout = fake.dtype, fake.device, fake.layout

    def stride(self, dim: int | None = None) -> Any:
        return self._strides if dim is None else self._strides[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> Any:
        total: Any = 1
        for number in self.shape:
            total = total * number
        return total

    def to(self, dtype: torch.dtype) -> Outline:
        """One of another kind that lies as this one does."""
        other = copy.copy(self)
        other.dtype = dtype
        return other


def outlined(names: SizeNames | None, value: Any) -> Any:
    """Fakes with sizes as kernels take them; without symbols they are that already."""
    if names is None:
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(outlined(names, item) for item in value)
    return Outline(names, value) if isinstance(value, torch.Tensor) else value


def is_fake(value: Any) -> bool:
    """Whether it stands for a tensor that comes out of an operation."""
    return isinstance(value, (torch.Tensor, Outline))
