"""Numbers with fractions that follow from symbols: computed when the program runs, operation by operation.

Rounding makes the order of operations matter, so nothing is simplified: what Python would have computed is computed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from bothways.symbols.expressions import Expression, Symbol

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
    "neg": operator.neg,
    "value": float,
}

# How functions of one number are written.
PREFIXES = {"neg": "(-{})", "value": "{}"}

Operand = Any  # a Real, an Expression, or a plain number


class Real:
    """One operation on other numbers."""

    __slots__ = ("args", "depth", "function", "weight")

    def __init__(self, function: str, *args: Operand) -> None:
        self.function, self.args = function, args
        inner = [arg for arg in args if not isinstance(arg, (int, float))]
        self.weight: int = 1 + sum(arg.weight for arg in inner)
        self.depth: int = 1 + max((arg.depth for arg in inner), default=0)

    def value(self, values: Mapping[Symbol, Any]) -> float:
        value: float = FUNCTIONS[self.function](*(value_of(arg, values) for arg in self.args))
        return value

    def symbols(self) -> set[Symbol]:
        return {symbol for arg in self.args if not isinstance(arg, (int, float)) for symbol in arg.symbols()}

    def text(self, name: Callable[[Any], str]) -> str:
        """As Python writes it, in parentheses, with a name for each atom."""
        texts = [text_of(arg, name) for arg in self.args]
        if self.function in PREFIXES:
            return PREFIXES[self.function].format(texts[0])
        return f"({f' {self.function} '.join(texts)})"

    def __str__(self) -> str:
        return self.text(str)

    @property
    def constant(self) -> None:
        """Never known beforehand."""
        return None


def value_of(operand: Operand, values: Mapping[Symbol, Any]) -> Any:
    return operand if isinstance(operand, (int, float)) else operand.value(values)


def text_of(operand: Operand, name: Callable[[Any], str]) -> str:
    if isinstance(operand, Expression):
        text = operand.text(name)
        return f"({text})" if " " in text else text
    if isinstance(operand, Real):
        return operand.text(name)
    written = repr(operand).replace("inf", "1e999") if operand == operand else "1e999 - 1e999"  # no names are needed
    return written if operand >= 0 else f"({written})"
