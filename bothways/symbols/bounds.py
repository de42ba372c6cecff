"""Between which numbers an expression lies, given where its symbols lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from bothways.symbols.expressions import Applied, Atom, Expression, Product, Symbol

INFINITE = math.inf


class Range(NamedTuple):
    """From the least to the greatest number, both included."""

    least: float = -INFINITE
    greatest: float = INFINITE


Ranges = Mapping[Symbol, Range]
ANYTHING = Range()


def range_of(expression: Expression, ranges: Ranges) -> Range:
    """Where the expression lies; not always as narrow as it could be."""
    by_terms, from_least = _sum_of_terms(expression, ranges), _from_least(expression, ranges)
    return Range(max(by_terms.least, from_least.least), min(by_terms.greatest, from_least.greatest))


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
    one, other = (range_of(arg, ranges) for arg in atom.args)
    match atom.function:
        case "max":
            return Range(max(one.least, other.least), max(one.greatest, other.greatest))
        case "min":
            return Range(min(one.least, other.least), min(one.greatest, other.greatest))
        case "mod" if other.least > 0:
            return Range(0, other.greatest - 1)
        case "floordiv" if other.least > 0 and one.least >= 0:
            least = 0 if other.greatest == INFINITE or one.least == INFINITE else one.least // other.greatest
            return Range(least, one.greatest if one.greatest == INFINITE else one.greatest // other.least)
    return ANYTHING
