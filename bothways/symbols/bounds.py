"""Between which numbers an expression lies, given where its symbols lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bothways.symbols.expressions import EXTREMES, Applied, Atom, Expression, Product, Symbol

INFINITE = math.inf


class Range(NamedTuple):
    """From the least to the greatest number, both included."""

    least: float = -INFINITE
    greatest: float = INFINITE


Ranges = Mapping[Symbol, Range]
ANYTHING = Range()


def range_of(expression: Expression, ranges: Ranges) -> Range:
    """Where the expression lies; not always as narrow as it could be."""
    bounds = [_sum_of_terms(expression, ranges), _from_least(expression, ranges), *_by_arguments(expression, ranges)]
    return Range(max(each.least for each in bounds), min(each.greatest for each in bounds))


def _by_arguments(expression: Expression, ranges: Ranges) -> Iterator[Range]:
    """Where it lies because the largest is at least as large as each: ``max(s0, s1) - s0`` is not negative."""
    for product, factor in expression.terms.items():
        [atom, *others] = product or (None,)
        if not others and isinstance(atom, Applied) and atom.function in EXTREMES:
            rest = expression - Expression({product: factor})
            each = [range_of(rest + arg * Expression.of(factor), ranges) for arg in atom.args]
            if (atom.function == "max") == (factor > 0):
                yield Range(max(one.least for one in each), INFINITE)
            else:
                yield Range(-INFINITE, min(one.greatest for one in each))
            return


def _from_least(expression: Expression, ranges: Ranges) -> Range:
    """With every atom written as its least value and something more: where all that is more counts in one direction,
    the expression begins, or ends, where nothing is more. ``s0 * s1 - s1`` is at least 2 when both are."""
    beyond: dict[Product, int] = {}
    for product, factor in expression.terms.items():
        parts: dict[Product, int] = {(): factor}
        for atom in product:
            least = _range_of_atom(atom, ranges).least
            if least == -INFINITE:
                return ANYTHING
            longer = {tuple(sorted((*part, atom))): count for part, count in parts.items()}
            for part, count in parts.items():
                longer[part] = longer.get(part, 0) + count * int(least)
            parts = longer
        for part, count in parts.items():
            beyond[part] = beyond.get(part, 0) + count
    start = beyond.pop((), 0)
    if all(count >= 0 for count in beyond.values()):
        return Range(start, INFINITE)
    return Range(-INFINITE, start) if all(count <= 0 for count in beyond.values()) else ANYTHING


def _sum_of_terms(expression: Expression, ranges: Ranges) -> Range:
    least: float = 0
    greatest: float = 0
    for product, factor in expression.terms.items():
        term = Range(factor, factor)
        for atom in product:
            term = _product(term, _range_of_atom(atom, ranges))
        least, greatest = least + term.least, greatest + term.greatest
    return Range(least, greatest)


def _product(one: Range, other: Range) -> Range:
    corners = [_times(a, b) for a in one for b in other]
    return Range(min(corners), max(corners))


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b  # nothing, however often


def _range_of_atom(atom: Atom, ranges: Ranges) -> Range:
    if isinstance(atom, Symbol):
        return ranges.get(atom, ANYTHING)
    assert isinstance(atom, Applied)
    inside = [range_of(arg, ranges) for arg in atom.args]
    if atom.function in EXTREMES:
        choose = {"max": max, "min": min}[atom.function]
        return Range(choose(each.least for each in inside), choose(each.greatest for each in inside))
    one, other = inside
    match atom.function:
        case "mod" if other.least > 0:
            return Range(0, other.greatest - 1)
        case "floordiv" if other.least > 0:
            least = _quotient(one.least, other.greatest, other.least)
            return Range(least, _quotient(one.greatest, other.least, other.greatest))
    return ANYTHING


def _quotient(number: float, divisor: float, of_negative: float) -> float:
    """An end of a quotient: the divisor that makes a positive number least makes a negative one greatest."""
    return number if abs(number) == INFINITE else number // (divisor if number >= 0 else of_negative)
