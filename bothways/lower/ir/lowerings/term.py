"""Nodes with Python's operators, so that the formula of an operation reads like the formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, Operand
from bothways.lower.ir.prims import Node, Shape


class Term:
    """A value of a formula; all its terms have one dtype."""

    def __init__(self, b: Builder, value: Operand, dtype: torch.dtype) -> None:
        self.b, self.dtype = b, dtype
        self.value = b.cast(value, dtype) if isinstance(value, Node) else value

    def apply(self, op: str, *others: Any) -> Term:
        return Term(self.b, self.b.map(op, self.value, *map(_value, others), dtype=self.dtype), self.dtype)

    def _after(self, op: str, first: Any) -> Term:
        return Term(self.b, self.b.map(op, _value(first), self.value, dtype=self.dtype), self.dtype)

    def __add__(self, other: Any) -> Term:
        return self.apply("add", other)

    def __sub__(self, other: Any) -> Term:
        return self.apply("sub", other)

    def __mul__(self, other: Any) -> Term:
        return self.apply("mul", other)

    def __truediv__(self, other: Any) -> Term:
        return self.apply("div", other)

    def __radd__(self, other: Any) -> Term:
        return self._after("add", other)

    def __rsub__(self, other: Any) -> Term:
        return self._after("sub", other)

    def __rmul__(self, other: Any) -> Term:
        return self._after("mul", other)

    def __rtruediv__(self, other: Any) -> Term:
        return self._after("div", other)

    def __neg__(self) -> Term:
        return self.apply("neg")

    # Comparisons give conditions: Nodes of bool. Equality keeps its meaning for Python.

    def _compare(self, op: str, other: Any) -> Node:
        return self.b.map(op, self.value, _value(other), dtype=torch.bool, of=self.dtype)

    def __lt__(self, other: Any) -> Node:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> Node:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> Node:
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> Node:
        return self._compare("ge", other)

    def equals(self, other: Any) -> Node:
        return self._compare("eq", other)

    def isnan(self) -> Node:
        return self.b.map("isnan", self.value, dtype=torch.bool, of=self.dtype)

    def where(self, condition: Node, other: Any) -> Term:
        """This where the condition holds, else the other."""
        return Term(self.b, self.b.where(condition, self.value, _value(other), self.dtype), self.dtype)

    # Functions.

    def exp(self) -> Term:
        return self.apply("exp")

    def log(self) -> Term:
        return self.apply("log")

    def log1p(self) -> Term:
        return self.apply("log1p")

    def tanh(self) -> Term:
        return self.apply("tanh")

    def sigmoid(self) -> Term:
        return self.apply("sigmoid")

    def abs(self) -> Term:
        return self.apply("abs")

    def maximum(self, other: Any) -> Term:
        return self.apply("maximum", other)

    def minimum(self, other: Any) -> Term:
        return self.apply("minimum", other)

    def clamp(self, low: Any, high: Any) -> Term:
        return self.apply("clamp_min", low).apply("clamp_max", high)

    def share_of(self, whole: Any) -> Term:
        """What part of a whole it is, where both are finite and neither is negative, or NaN."""
        return self.apply("share", whole)

    def times_plus(self, factor: Any, other: Any) -> Term:
        """The product with a factor, plus another; rounded once, where ATen's kernel does that."""
        return self.apply("multiply_add", factor, other)

    def stored(self, dtype: torch.dtype) -> Term:
        """What eager reads again, where the operation is several of its kernels: half precision is rounded."""
        return Term(self.b, self.b.cast(self.node, dtype), self.dtype)

    # Reductions; the axes stay, with size one.

    def sum(self, axes: Sequence[int]) -> Term:
        return Term(self.b, self.b.reduce("sum", self.node, axes), self.dtype)

    def max(self, axes: Sequence[int]) -> Term:
        return Term(self.b, self.b.reduce("max", self.node, axes), self.dtype)

    def mean(self, axes: Sequence[int]) -> Term:
        return self.sum(axes) / math.prod(self.node.shape[axis] for axis in axes)

    # The way out.

    @property
    def node(self) -> Node:
        assert isinstance(self.value, Node)
        return self.value

    def reshape(self, shape: Shape) -> Term:
        return Term(self.b, self.b.reshape(self.node, shape), self.dtype)

    def as_(self, dtype: torch.dtype) -> Node:
        return self.b.cast(self.node, dtype)


def _value(other: Any) -> Operand:
    return other.value if isinstance(other, Term) else other


def both(b: Builder, one: Node, other: Node) -> Node:
    return b.map("logical_and", one, other, dtype=torch.bool)


def either(b: Builder, one: Node, other: Node) -> Node:
    return b.map("logical_or", one, other, dtype=torch.bool)


def negated(b: Builder, condition: Node) -> Node:
    return b.map("logical_not", condition, dtype=torch.bool)


def compared(b: Builder, op: str, index: Operand, other: Operand) -> Node:
    """A comparison of positions."""
    return b.map(op, index, other, dtype=torch.bool, of=torch.int64)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What half precision is computed in."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def number_as(dtype: torch.dtype, value: float) -> float:
    """A number as a dtype holds it."""
    return float(torch.tensor(float(value), dtype=torch.float64, device="cpu").to(dtype))


def terms(b: Builder, dtype: torch.dtype, *values: Operand) -> list[Term]:
    """The values as terms of a formula whose result has the given dtype."""
    return [Term(b, value, wide(dtype)) for value in values]
