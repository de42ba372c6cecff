"""Integer expressions over symbols, in one normal form: a sum of products, so that equal ones are the same.

What is no polynomial (a quotient, a remainder, a maximum) is an atom of its own, like a symbol, made of expressions.
Expressions know nothing of values, guards or PyTorch.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping

# So many steps of a division are tried before there is no quotient.
LONGEST_DIVISION = 32


class Atom:
    """What products are made of; ``key`` orders atoms and tells them apart."""

    __slots__ = ("key",)
    key: str
    weight: int = 0
    depth: int = 0

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Atom) -> bool:
        return self.key < other.key

    def __repr__(self) -> str:
        return self.key


class Symbol(Atom):
    """A number that may be another one at the next call."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self.key = name


class Applied(Atom):
    """A function of expressions that is no polynomial of them."""

    __slots__ = ("args", "depth", "function", "weight")

    def __init__(self, function: str, args: tuple[Expression, ...]) -> None:
        self.function, self.args = function, args
        self.weight = 1 + sum(arg.weight for arg in args)
        self.depth = 1 + max(arg.depth for arg in args)
        self.key = self.text([str(arg) for arg in args])

    def text(self, args: list[str]) -> str:
        """The atom as Python, from the texts of its arguments."""
        if self.function in EXTREMES:
            return f"{self.function}({', '.join(args)})"
        return SPELLING[self.function].format(*(f"({arg})" if " " in arg else arg for arg in args))


# How Python computes each function of atoms, and how it is written.
COMPUTED: dict[str, Callable[..., int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
SPELLING: dict[str, str] = {
    "floordiv": "({} // {})",
    "mod": "({} % {})",
}
EXTREMES = ("max", "min")  # of two numbers or more

Product = tuple[Atom, ...]


class Expression:
    """A sum of products with whole coefficients; the empty product stands for the constant."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Product, int]) -> None:
        # By degree first, so that a division takes away the leading term in each step.
        ordered = sorted(terms.items(), key=lambda term: (len(term[0]), term[0])) if len(terms) > 1 else terms.items()
        self.terms = {product: factor for product, factor in ordered if factor}
        self._hash = hash(tuple(self.terms.items()))

    @staticmethod
    def of(value: int) -> Expression:
        return Expression({(): value})

    @staticmethod
    def atom(atom: Atom) -> Expression:
        return Expression({(atom,): 1})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    @property
    def constant(self) -> int | None:
        """The number it is, if it is one."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def weight(self) -> int:
        """How much there is to compute beside sums, what occurs twice counted twice."""
        return sum(max(0, len(product) - 1) + sum(atom.weight for atom in product) for product in self.terms)

    @property
    def depth(self) -> int:
        """How many quotients and remainders are one inside the other."""
        return max((atom.depth for product in self.terms for atom in product), default=0)

    def atoms(self) -> Iterator[Atom]:
        for product in self.terms:
            yield from product

    def symbols(self) -> set[Symbol]:
        """The symbols in it, those inside of atoms included."""
        symbols: set[Symbol] = set()
        for atom in self.atoms():
            if isinstance(atom, Symbol):
                symbols.add(atom)
            elif isinstance(atom, Applied):
                symbols.update(*(arg.symbols() for arg in atom.args))
        return symbols

    def __add__(self, other: Expression) -> Expression:
        terms = dict(self.terms)
        for product, factor in other.terms.items():
            terms[product] = terms.get(product, 0) + factor
        return Expression(terms)

    def __neg__(self) -> Expression:
        return Expression({product: -factor for product, factor in self.terms.items()})

    def __sub__(self, other: Expression) -> Expression:
        return self + -other

    def __mul__(self, other: Expression) -> Expression:
        terms: dict[Product, int] = {}
        for one, a in self.terms.items():
            for two, b in other.terms.items():
                product = tuple(sorted(one + two))
                terms[product] = terms.get(product, 0) + a * b
        return Expression(terms)

    def divided(self, other: Expression) -> Expression | None:
        """The exact quotient, where there is one."""
        if other.constant == 0:
            return None
        lead, lead_factor = next(reversed(other.terms.items()))
        rest, quotient = self, Expression({})
        for _ in range(LONGEST_DIVISION):
            if not rest.terms:
                return quotient
            product, factor = next(reversed(rest.terms.items()))
            missing = _without(product, lead)
            if missing is None or factor % lead_factor:
                return None
            step = Expression({missing: factor // lead_factor})
            quotient, rest = quotient + step, rest - step * other
        return None

    def content(self) -> int:
        """The greatest number that divides every coefficient."""
        return math.gcd(*self.terms.values()) if self.terms else 0

    def replaced(self, values: Mapping[Symbol, Expression]) -> Expression:
        """The expression with expressions in the place of symbols."""
        if not any(symbol in values for symbol in self.symbols()):
            return self
        total = Expression({})
        for product, factor in self.terms.items():
            step = Expression.of(factor)
            for atom in product:
                step = step * _atom_replaced(atom, values)
            total = total + step
        return total

    def with_product(self, product: Product, other: Expression) -> Expression:
        """The expression with another in the place of a product, as long as it contains that."""
        result = self
        for _ in range(LONGEST_DIVISION):
            for own, factor in result.terms.items():
                rest = _without(own, product)
                if rest is not None:
                    result = result - Expression({own: factor}) + Expression({rest: factor}) * other
                    break
            else:
                break
        return result

    def value(self, values: Mapping[Symbol, int]) -> int:
        """The number it is for these values of its symbols."""
        terms = [
            math.prod((_atom_value(atom, values) for atom in product), start=factor)
            for product, factor in self.terms.items()
        ]
        return terms[0] if len(terms) == 1 else sum(terms)  # one alone keeps its sign: 0 + -0.0 is 0.0

    def __str__(self) -> str:
        return self.text(str)

    def text(self, name: Callable[[Atom], str]) -> str:
        """As Python and C write it, with a name for each atom."""
        if not self.terms:
            return "0"
        parts: list[str] = []
        # Numbers last and subtracted terms behind others: ``s0 * 4 - 1``.
        for product, factor in sorted(self.terms.items(), key=lambda term: (term[1] < 0, not term[0], term[0])):
            names = [name(atom) for atom in product]
            if abs(factor) != 1 or not names:
                names.append(str(abs(factor)))
            sign = ("-" if factor < 0 else "") if not parts else (" - " if factor < 0 else " + ")
            parts.append(sign + " * ".join(names))
        return "".join(parts)

    __repr__ = __str__


def _without(product: Product, part: Product) -> Product | None:
    """The product divided by another, if that is a part of it."""
    left = list(product)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _atom_replaced(atom: Atom, values: Mapping[Symbol, Expression]) -> Expression:
    if isinstance(atom, Symbol):
        return values.get(atom) or Expression.atom(atom)
    assert isinstance(atom, Applied)
    return applied(atom.function, *(arg.replaced(values) for arg in atom.args))


def _atom_value(atom: Atom, values: Mapping[Symbol, int]) -> int:
    if isinstance(atom, Symbol):
        return values[atom]
    assert isinstance(atom, Applied)
    return COMPUTED[atom.function](*(arg.value(values) for arg in atom.args))


def applied(function: str, *args: Expression) -> Expression:
    """``function`` of expressions, as a polynomial or a number where it is one."""
    constants = [arg.constant for arg in args]
    if all(constant is not None for constant in constants) and not (
        function in ("floordiv", "mod") and constants[1] == 0
    ):
        return Expression.of(COMPUTED[function](*constants))
    return SIMPLIFIED[function](*args) or Expression.atom(Applied(function, args))


def _floordiv(one: Expression, other: Expression) -> Expression | None:
    exact = one.divided(other)
    if exact is not None:
        return exact
    # (s0 * 4 + 3) // 4 is s0: what is divisible comes out of the quotient.
    whole, rest = _split(one, other)
    return whole + applied("floordiv", rest, other) if whole.terms else None


def _mod(one: Expression, other: Expression) -> Expression | None:
    if one.divided(other) is not None:
        return Expression.of(0)
    whole, rest = _split(one, other)
    return applied("mod", rest, other) if whole.terms else None


def _split(one: Expression, other: Expression) -> tuple[Expression, Expression]:
    """The terms that a single product divides, already divided, and the others."""
    if len(other.terms) != 1:
        return Expression({}), one
    whole, rest = Expression({}), Expression({})
    for product, factor in one.terms.items():
        term = Expression({product: factor})
        quotient = term.divided(other)
        if quotient is None:
            rest = rest + term
        else:
            whole = whole + quotient
    return whole, rest


def _extreme(function: str) -> Callable[..., Expression]:
    def choose(*args: Expression) -> Expression:
        kept: list[Expression] = []
        for arg in itertools.chain.from_iterable(_alternatives(function, arg) for arg in args):
            for place, other in enumerate(kept):
                distance = (arg - other).constant
                if distance is not None:
                    kept[place] = arg if (distance > 0) == (function == "max") else other
                    break
            else:
                kept.append(arg)
        return kept[0] if len(kept) == 1 else Expression.atom(Applied(function, tuple(sorted(kept, key=str))))

    return choose


def _alternatives(function: str, arg: Expression) -> tuple[Expression, ...]:
    """What the larger (or smaller) one is chosen of: where it was chosen in the same way itself, all of those."""
    atom = next(arg.atoms(), None)
    is_alike = isinstance(atom, Applied) and atom.function == function and arg.terms == {(atom,): 1}
    return atom.args if is_alike else (arg,)  # type: ignore[union-attr]


SIMPLIFIED: dict[str, Callable[..., Expression | None]] = {
    "floordiv": _floordiv,
    "mod": _mod,
    "max": _extreme("max"),
    "min": _extreme("min"),
}

