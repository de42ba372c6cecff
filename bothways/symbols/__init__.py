"""Sizes that may be others at the next call: expressions over symbols, and what a program assumes about them."""

from __future__ import annotations

from typing import Any

from bothways.symbols.environment import Condition, Environment, Frozen, Undecided, spelled
from bothways.symbols.expressions import Applied, Atom, Expression, Symbol
from bothways.symbols.graphs import SYMBOLIC, SizeNodes
from bothways.symbols.node import RealNode, SizeNode, size
from bothways.symbols.reals import Real

__all__ = [
    "SYMBOLIC", "Applied", "Atom", "Condition", "Environment", "Expression", "Frozen", "Real", "RealNode", "SizeNode",
    "SizeNodes", "Symbol", "Undecided", "expression_of", "hint", "size", "spelled",
]  # fmt: skip


def hint(number: Any) -> Any:
    """The value of now, for decisions that do not matter for what is right."""
    return number.node.hint if isinstance(number, SYMBOLIC) else number


def expression_of(number: Any) -> Any:
    """What a number is computed from: an Expression, or a Real."""
    return number.node.expression if isinstance(number, SYMBOLIC) else Expression.of(number)
