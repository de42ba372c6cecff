"""Lowerings of operations that are several primitives: normalisations, softmax, activations and their backwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bothways.lower.builder import Builder, NotLowered, Operand
from bothways.lower.lowerings import aten, lowers
from bothways.lower.prims import Node
from bothways.lower.shapes import normal_dim


class Term:
    """A Node with Python's operators, so that formulas read like formulas. All in one dtype."""

    def __init__(self, b: Builder, node: Operand, dtype: torch.dtype) -> None:
        self.b, self.dtype = b, dtype
        self.node = b.cast(node, dtype) if isinstance(node, Node) else node

    def apply(self, op: str, *others: Any) -> Term:
        operands = [self.node, *(other.node if isinstance(other, Term) else other for other in others)]
        return Term(self.b, self.b.map(op, *operands, dtype=self.dtype), self.dtype)

    def __add__(self, other: Any) -> Term:
        return self.apply("add", other)

    def __sub__(self, other: Any) -> Term:
        return self.apply("sub", other)

    def __mul__(self, other: Any) -> Term:
        return self.apply("mul", other)

    def __truediv__(self, other: Any) -> Term:
        return self.apply("div", other)

    def __neg__(self) -> Term:
        return self.apply("neg")

    def __rsub__(self, other: float) -> Term:
        return Term(self.b, other, self.dtype)._flipped("sub", self)

    __radd__ = __add__
    __rmul__ = __mul__

    def _flipped(self, op: str, other: Term) -> Term:
        return Term(self.b, self.b.map(op, self.node, other.node, dtype=self.dtype), self.dtype)

    def compare(self, op: str, other: Any) -> Node:
        operands = [self.node, other.node if isinstance(other, Term) else other]
        return self.b.map(op, *operands, dtype=torch.bool, of=self.dtype)

    def where(self, condition: Node, otherwise: Any) -> Term:
        other = otherwise.node if isinstance(otherwise, Term) else otherwise
        return Term(self.b, self.b.where(condition, self.node, other, self.dtype), self.dtype)

    def reduce(self, op: str, axes: Sequence[int]) -> Term:
        assert isinstance(self.node, Node)
        return Term(self.b, self.b.reduce(op, self.node, axes), self.dtype)

    def mean(self, axes: Sequence[int]) -> Term:
        assert isinstance(self.node, Node)
        return self.reduce("sum", axes) * (1.0 / math.prod(self.node.shape[axis] for axis in axes))

    def exp(self) -> Term:
        return self.apply("exp")

    def tanh(self) -> Term:
        return self.apply("tanh")

    def as_(self, dtype: torch.dtype) -> Node:
        assert isinstance(self.node, Node)
        return self.b.cast(self.node, dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What half precision is computed in where eager does so as well."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


# Softmax --------------------------------------------------------------------------------------------------------


@lowers(aten._softmax.default)
def _softmax(b: Builder, out: torch.Tensor, x: Node, dim: int, half_to_float: bool) -> Node:
    if not x.shape or x.shape[normal_dim(dim, len(x.shape))] == 1:
        raise NotLowered
    axes = [normal_dim(dim, len(x.shape))]
    term = Term(b, x, wide(out.dtype))
    powers = (term - term.reduce("max", axes)).exp()
    return (powers / powers.reduce("sum", axes)).as_(out.dtype)


@lowers(aten._log_softmax.default)
def _log_softmax(b: Builder, out: torch.Tensor, x: Node, dim: int, half_to_float: bool) -> Node:
    if not x.shape or x.shape[normal_dim(dim, len(x.shape))] == 1:
        raise NotLowered
    axes = [normal_dim(dim, len(x.shape))]
    term = Term(b, x, wide(out.dtype))
    shifted = term - term.reduce("max", axes)
    return (shifted - shifted.exp().reduce("sum", axes).apply("log")).as_(out.dtype)


@lowers(aten._softmax_backward_data.default)
def _softmax_backward(b: Builder, out: torch.Tensor, grad: Node, y: Node, dim: int, dtype: torch.dtype) -> Node:
    if not y.shape or y.shape[normal_dim(dim, len(y.shape))] == 1:
        raise NotLowered
    axes = [normal_dim(dim, len(y.shape))]
    g, s = Term(b, grad, wide(y.dtype)), Term(b, y, wide(y.dtype))
    product = g * s
    return (product - s * product.reduce("sum", axes)).as_(out.dtype)


@lowers(aten._log_softmax_backward_data.default)
def _log_softmax_backward(b: Builder, out: torch.Tensor, grad: Node, y: Node, dim: int, dtype: torch.dtype) -> Node:
    if not y.shape or y.shape[normal_dim(dim, len(y.shape))] == 1:
        raise NotLowered
    axes = [normal_dim(dim, len(y.shape))]
    g, s = Term(b, grad, wide(y.dtype)), Term(b, y, wide(y.dtype))
    return (g - s.exp() * g.reduce("sum", axes)).as_(out.dtype)


# Layer norm -----------------------------------------------------------------------------------------------------


@lowers(aten.native_layer_norm.default)
def _layer_norm(
    b: Builder, out: Any, x: Node, shape: Sequence[int], weight: Node | None, bias: Node | None, eps: float
) -> Any:
    axes = list(range(len(x.shape) - len(shape), len(x.shape)))
    if all(x.shape[axis] == 1 for axis in axes):
        raise NotLowered
    dtype = wide(x.dtype)
    term = Term(b, x, dtype)
    mean = term.mean(axes)
    centered = term - mean
    rstd = ((centered * centered).mean(axes) + eps).apply("rsqrt")
    result = centered * rstd
    if weight is not None:
        result = result * Term(b, weight, dtype)
    if bias is not None:
        result = result + Term(b, bias, dtype)
    return result.as_(out[0].dtype), mean.as_(out[1].dtype), rstd.as_(out[2].dtype)


@lowers(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    b: Builder, out: Any, grad: Node, x: Node, shape: Sequence[int], mean: Node, rstd: Node, weight: Node | None,
    bias: Node | None, mask: Sequence[bool],
) -> Any:  # fmt: skip
    rank = len(x.shape)
    axes = list(range(rank - len(shape), rank))
    rows = [axis for axis in range(rank) if axis not in axes]
    if all(x.shape[axis] == 1 for axis in axes) or (rows and all(x.shape[axis] == 1 for axis in rows)) or not rows:
        raise NotLowered
    dtype = wide(x.dtype)
    g, r = Term(b, grad, dtype), Term(b, rstd, dtype)
    normal = (Term(b, x, dtype) - Term(b, mean, dtype)) * r
    scaled = g * Term(b, weight, dtype) if weight is not None else g
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        inner = scaled - scaled.mean(axes) - normal * (scaled * normal).mean(axes)
        grad_x = (inner * r).as_(x.dtype)
    if mask[1] and weight is not None:
        grad_weight = b.reshape((g * normal).reduce("sum", rows).as_(weight.dtype), weight.shape)
    if mask[2] and bias is not None:
        grad_bias = b.reshape(g.reduce("sum", rows).as_(bias.dtype), bias.shape)
    return grad_x, grad_weight, grad_bias


# Activations ----------------------------------------------------------------------------------------------------

KAPPA, BETA = 0.044715, math.sqrt(2 / math.pi)


@lowers(aten.gelu.default)
def _gelu(b: Builder, out: torch.Tensor, x: Node, approximate: str = "none") -> Node:
    term = Term(b, x, out.dtype)
    if approximate == "tanh":
        inner = BETA * (term + KAPPA * (term * term * term))
        return (0.5 * term * (1 + inner.tanh())).as_(out.dtype)
    return (term * 0.5 * (1 + (term * math.sqrt(0.5)).apply("erf"))).as_(out.dtype)


@lowers(aten.gelu_backward.default)
def _gelu_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, approximate: str = "none") -> Node:
    g, term = Term(b, grad, out.dtype), Term(b, x, out.dtype)
    if approximate == "tanh":
        square = term * term
        tanh = (BETA * (term + KAPPA * (square * term))).tanh()
        slope = 0.5 * term * (1 - tanh * tanh) * (BETA * (1 + 3 * KAPPA * square))
        return (g * (0.5 * (1 + tanh) + slope)).as_(out.dtype)
    cdf = 0.5 * (1 + (term * math.sqrt(0.5)).apply("erf"))
    pdf = (term * term * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return (g * (cdf + term * pdf)).as_(out.dtype)


@lowers(aten.silu.default)
def _silu(b: Builder, out: torch.Tensor, x: Node) -> Node:
    term = Term(b, x, out.dtype)
    return (term * term.apply("sigmoid")).as_(out.dtype)


@lowers(aten.silu_backward.default)
def _silu_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node) -> Node:
    g, term = Term(b, grad, out.dtype), Term(b, x, out.dtype)
    sigmoid = term.apply("sigmoid")
    return (g * sigmoid * (1 + term * (1 - sigmoid))).as_(out.dtype)


@lowers(aten.sigmoid_backward.default)
def _sigmoid_backward(b: Builder, out: torch.Tensor, grad: Node, y: Node) -> Node:
    g, s = Term(b, grad, out.dtype), Term(b, y, out.dtype)
    return (g * (1 - s) * s).as_(out.dtype)


@lowers(aten.tanh_backward.default)
def _tanh_backward(b: Builder, out: torch.Tensor, grad: Node, y: Node) -> Node:
    g, t = Term(b, grad, out.dtype), Term(b, y, out.dtype)
    return (g * (1 - t * t)).as_(out.dtype)


@lowers(aten.threshold_backward.default)
def _threshold_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, threshold: float) -> Node:
    g, term = Term(b, grad, out.dtype), Term(b, x, x.dtype)
    return Term(b, 0, out.dtype).where(term.compare("le", threshold), g).as_(out.dtype)
