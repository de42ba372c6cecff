"""What one program assumes about its symbols: their values now, where they lie, and the comparisons that were decided.

A question whose answer follows from what is known is answered. Any other is decided by the values of this call and
noted as a condition: a guard of the program while it is made, a condition of a part that is compiled later.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bothways.locks import Lock
from bothways.symbols.bounds import Range, range_of
from bothways.symbols.expressions import Applied, Expression, Product, Symbol, applied
from bothways.symbols.reals import Real

# What is asked of ``left - right``: whether it is zero, whether it is negative; or of an expression: its very value.
ZERO, NEGATIVE, VALUE = "==", "<", "value"
INVERSE = {"==": "!=", "<": ">="}
# Whether two floats are the same one: 0.0 equals -0.0, and NaN nothing.
SAME = "is"
SPELLED = {SAME: "({}).hex() == ({}).hex()"}  # no names are needed
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
SWAPPED = {"==": "==", "!=": "!=", "<": ">", ">=": "<="}
_versions = itertools.count(1)


class Undecided(Exception):
    """The answer depends on a number that is not known before the program runs."""


class Frozen(Exception):
    """A symbol would become the number of this call, where that was not wanted."""


def refuse(asked: Expression | Real, question: str) -> bool:
    raise Undecided(f"{asked} is known only when the program runs")


@dataclass(frozen=True)
class Condition:
    """``left symbol right``, which was true when it was decided, or false where it says so."""

    left: Expression | Real
    symbol: str
    right: Expression | Real
    holds: bool = True

    def text(self, name: Callable[[Symbol], str]) -> str:
        """As Python, with a name for each symbol."""
        return self.compared(spelled(self.left, name), spelled(self.right, name))

    def compared(self, left: str, right: str) -> str:
        """As Python, with both sides as they are written there."""
        template = SPELLED.get(self.symbol, f"{{}} {self.symbol} {{}}").format(left, right)
        return template if self.holds else f"not {template}"

    def __str__(self) -> str:
        return self.text(lambda symbol: symbol.key)


def spelled(expression: Expression | Real, name: Callable[[Symbol], str]) -> str:
    """An expression as Python, with a name for each symbol."""

    def of_atom(atom: Any) -> str:
        return atom.text([spelled(arg, name) for arg in atom.args]) if isinstance(atom, Applied) else name(atom)

    return expression.text(of_atom)



@dataclass
class Knowledge:
    """What follows from the conditions so far."""

    ranges: dict[Symbol, Range] = field(default_factory=dict)
    replaced: dict[Symbol, Expression] = field(default_factory=dict)  # symbols that are known by others
    products: dict[Product, Expression] = field(default_factory=dict)  # and products of them
    zero: dict[Expression, bool] = field(default_factory=dict)
    negative: dict[Expression, bool] = field(default_factory=dict)

    def copy(self) -> Knowledge:
        return Knowledge(
            dict(self.ranges), dict(self.replaced), dict(self.products), dict(self.zero), dict(self.negative)
        )


class Environment:
    """The symbols of one program."""

    def __init__(self) -> None:
        self.values: dict[Symbol, Any] = {}
        self.conditions: list[Condition] = []
        self.on_condition: Callable[[Condition], None] = self.conditions.append
        # Symbols whose values are not known before the program runs (read from data, drawn by chance): no guard can be
        # about them. Whoever can do something about a question answers it here; the others refuse.
        self.unknown: frozenset[Symbol] = frozenset()
        self.on_unknown: Callable[[Expression | Real, str], bool] = refuse
        # Told before a number becomes that of this call: an operation takes plain ones alone.
        self.on_value: Callable[[Symbol], None] | None = None
        self.known = Knowledge()
        self.version = 0  # changes with what is known
        self.freezes = True  # whether symbols may become the numbers of this call
        self._lock = Lock(self._recover)
        self._put_aside: list[tuple[Any, ...]] = []  # by each ``later`` that is not over

    def symbol(self, value: Any, least: float) -> Symbol:
        """A new symbol that has this value now, and is never below ``least``. Those of floats are called ``f0``, …"""
        return self._symbol("s" if type(value) is int else "f", value, least)

    def unknown_symbol(self, like: int | float, within: Range) -> Symbol:
        """A symbol for a number that is found when the program runs; ``like`` has its type, and is a guess."""
        like = min(max(like, within.least), within.greatest)
        symbol = self._symbol("u" if type(like) is int else "fu", like, within.least)
        self.known.ranges[symbol] = within
        self.unknown |= {symbol}
        return symbol

    def _symbol(self, letter: str, value: Any, least: float) -> Symbol:
        symbol = Symbol(f"{letter}{len(self.values)}")
        self.values[symbol] = value
        self.known.ranges[symbol] = Range(least)
        return symbol

    def is_unknown(self, expression: Expression | Real) -> bool:
        """Whether the value of an expression is found only when the program runs."""
        return bool(self.unknown) and not self.unknown.isdisjoint(expression.symbols())

    @contextmanager
    def later(self, values: Mapping[Symbol, int] | None = None) -> Iterator[list[Condition]]:
        """Inside of it the program is finished: what is assumed, by other values maybe, goes into the list."""
        with self._lock:
            yield from self._later(values)

    @contextmanager
    def unfrozen(self) -> Iterator[None]:
        """Inside of it whatever would make a number of a symbol raises ``Frozen``."""
        before, self.freezes = self.freezes, False
        try:
            yield
        finally:
            self.freezes = before

    def _later(self, values: Mapping[Symbol, int] | None) -> Iterator[list[Condition]]:
        self._put_aside.append((self.values, self.on_condition, self.known, self.unknown))
        conditions: list[Condition] = []
        self.values, self.on_condition, self.known = dict(values or self.values), conditions.append, self.known.copy()
        self.unknown -= set(values or ())
        self.version = next(_versions)
        try:
            yield conditions
        finally:
            self._bring_back(self._put_aside.pop())

    def _bring_back(self, before: tuple[Any, ...]) -> None:
        self.values, self.on_condition, self.known, self.unknown = before
        self.version = next(_versions)

    def _recover(self) -> None:
        """In a child process: be as before what a thread began that does not exist there."""
        if self._put_aside:
            self._bring_back(self._put_aside[0])
            self._put_aside.clear()

    @property
    def equations(self) -> int:
        """How many equations between sizes are known."""
        return len(self.known.replaced) + len(self.known.products)

    def simplified(self, expression: Expression) -> Expression:
        if self.known.replaced:
            expression = expression.replaced(self.known.replaced)
        for product, other in self.known.products.items():
            expression = expression.with_product(product, other)
        return expression

    def range_of(self, expression: Expression) -> Range:
        return range_of(expression, self.known.ranges)

    # Questions.

    def known_answer(self, difference: Expression, question: str) -> bool | None:
        """Whether the difference is zero (or negative), if that follows from what is known."""
        constant = difference.constant
        if constant is not None:
            return constant == 0 if question == ZERO else constant < 0
        least, greatest = self.range_of(difference)
        if question == NEGATIVE:
            if greatest < 0 or least >= 0:
                return greatest < 0
            return self.known.negative.get(_normal(difference))
        if least > 0 or greatest < 0 or _has_no_root(difference):
            return False
        return self.known.zero.get(_unsigned(difference))

    def extreme(self, function: str, one: Expression, other: Expression) -> Expression:
        """``max`` or ``min`` of two; one of them where it follows which, and no question where it does not."""
        for left, right in ((one, other), (other, one)):
            less = self.known_answer(self.simplified(left - right), NEGATIVE)
            if less is not None:
                return right if less == (function == "max") else left
        return applied(function, one, other)

    def decide(self, left: Expression, right: Expression, question: str) -> bool:
        """The answer for the values of now, noted unless it follows."""
        difference = self.simplified(left - right)
        known = self.known_answer(difference, question)
        if known is not None:
            return known
        if self.is_unknown(difference):
            answer = self.on_unknown(difference, question)
        else:
            value = difference.value(self.values)
            answer = value == 0 if question == ZERO else value < 0
            self.on_condition(readable(difference, question if answer else INVERSE[question]))
        self.learn(difference, question, answer)
        return answer

    def decide_real(self, left: Any, right: Any, symbol: str) -> bool:
        """A comparison of numbers that may have fractions; nothing follows from it."""
        left, right = (Real("value", side) if isinstance(side, (int, float)) else side for side in (left, right))
        for side in (left, right):
            self._need_value(side)
        answer: bool = COMPARISONS[symbol](left.value(self.values), right.value(self.values))
        self.on_condition(Condition(left, symbol, right, answer))
        return answer

    def specialise_real(self, real: Expression | Real) -> float:
        """The value of now, which what it is computed from must have from now on."""
        self._need_value(real)
        for symbol in sorted(real.symbols()):
            if type(self.values[symbol]) is int:
                self.specialise(Expression.atom(symbol))
            else:
                if self.on_value is not None:
                    self.on_value(symbol)
                value = self.values[symbol]
                same = "==" if value and value == value else SAME
                self.on_condition(Condition(Expression.atom(symbol), same, Real("value", value)))
        return float(real.value(self.values))

    def specialise(self, expression: Expression) -> int:
        """The value of now, which it must have from now on."""
        expression = self.simplified(expression)
        self._need_value(expression)
        value = expression.value(self.values)
        if expression.constant is None:
            if not self.freezes:
                raise Frozen(f"{expression} has to be a plain number")
            # Each atom by itself: a product that must be 12 is guarded as its factors, and a remainder as what it is,
            # whatever number it is the remainder of.
            for atom in sorted(set(expression.atoms())):
                own = Expression.atom(atom)
                self.decide(own, Expression.of(own.value(self.values)), ZERO)
        return value

    def _need_value(self, expression: Expression | Real) -> None:
        if self.is_unknown(expression):
            self.on_unknown(expression, VALUE)

    # Conclusions.

    def learn(self, difference: Expression, question: str, answer: bool) -> None:
        if question == ZERO:
            self.known.zero[_unsigned(difference)] = answer
            if answer:
                self._replace(difference)
        else:
            self.known.negative[_normal(difference)] = answer
            self._narrow(difference, answer)

    def _replace(self, difference: Expression) -> None:
        """A symbol that an equation gives is written as what it equals, the latest one first; else a product is."""
        for product, factor in reversed(difference.terms.items()):
            if len(product) == 1 and isinstance(product[0], Symbol) and abs(factor) == 1:
                symbol = product[0]
                own = Expression({product: factor})
                rest = (own - difference) if factor == 1 else (difference - own)
                if symbol not in rest.symbols():
                    self.known.replaced = {
                        **{old: new.replaced({symbol: rest}) for old, new in self.known.replaced.items()},
                        symbol: rest,
                    }
                    self.version = next(_versions)
                    return
        for product, factor in reversed(difference.terms.items()):
            if abs(factor) == 1 and (len(product) > 1 or isinstance(next(iter(product), None), Applied)):
                own = Expression({product: factor})
                self.known.products[product] = (own - difference) if factor == 1 else (difference - own)
                self.version = next(_versions)
                return

    def _narrow(self, difference: Expression, negative: bool) -> None:
        """``s0 * a - b < 0`` or its opposite says where ``s0`` lies."""
        atoms = [(product, factor) for product, factor in difference.terms.items() if product]
        if len(atoms) != 1 or len(atoms[0][0]) != 1 or not isinstance(atoms[0][0][0], Symbol):
            return
        [((symbol,), factor)] = atoms
        rest = difference.terms.get((), 0)
        least, greatest = self.known.ranges[symbol]  # type: ignore[index]
        if negative:  # factor * s < -rest
            if factor > 0:
                greatest = min(greatest, (-rest - 1) // factor)
            else:
                least = max(least, rest // -factor + 1)
        elif factor > 0:  # factor * s >= -rest
            least = max(least, -(rest // factor))
        else:  # -factor * s <= rest
            greatest = min(greatest, rest // -factor)
        self.known.ranges[symbol] = Range(least, greatest)  # type: ignore[index]
        self.version = next(_versions)


def _normal(difference: Expression) -> Expression:
    """The same sign with the smallest coefficients."""
    content = difference.content()
    return Expression({product: factor // content for product, factor in difference.terms.items()})


def _unsigned(difference: Expression) -> Expression:
    normal = _normal(difference)
    return -normal if next(iter(normal.terms.values())) < 0 else normal


def _has_no_root(difference: Expression) -> bool:
    """``s0 * 2 + 1`` is never zero."""
    rest = difference.terms.get((), 0)
    others = Expression({product: factor for product, factor in difference.terms.items() if product})
    return bool(rest % (others.content() or 1))


def readable(difference: Expression, symbol: str) -> Condition:
    """A question about a difference as a comparison without minus signs, a number on the right."""
    left = Expression({product: factor for product, factor in difference.terms.items() if factor > 0 and product})
    right = Expression({product: -factor for product, factor in difference.terms.items() if factor < 0 and product})
    rest = Expression.of(difference.terms.get((), 0))
    if not left.terms:
        return Condition(right, SWAPPED[symbol], rest)
    if right.terms and difference.terms.get((), 0) > 0:
        return Condition(left + rest, symbol, right)
    return Condition(left, symbol, right - rest)
