"""Sizes that may be others at the next call: expressions over symbols, and what a program assumes about them."""

from __future__ import annotations

from typing import Any

import torch

from bothways.symbols.environment import Condition, Environment, spelled
from bothways.symbols.expressions import Applied, Atom, Expression, Symbol
from bothways.symbols.graphs import SizeNodes
from bothways.symbols.node import SizeNode, TruthNode, size

__all__ = [
    "Applied", "Atom", "Condition", "Environment", "Expression", "SizeNode", "SizeNodes", "Symbol", "TruthNode", "expression_of",
    "hint", "known", "size", "spelled",
]  # fmt: skip


def hint(number: Any) -> Any:
    """The value of now, for decisions that do not matter for what is right."""
    return number.node.hint if isinstance(number, torch.SymInt) else number


def known(truth: Any) -> bool:
    """Whether something is true for all sizes the program may meet; what is not known is not assumed."""
    return truth.node.known is True if isinstance(truth, torch.SymBool) else bool(truth)


def expression_of(number: torch.SymInt | int) -> Expression:
    return number.node.expression if isinstance(number, torch.SymInt) else Expression.of(number)
