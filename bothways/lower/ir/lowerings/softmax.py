"""Softmax, its logarithm, and their backwards. Half precision is computed in float throughout, as in ATen."""

from __future__ import annotations

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers_floating, overloads
from bothways.lower.ir.lowerings.term import terms
from bothways.lower.ir.prims import Node
from bothways.lower.ir.shapes import normal_dim


def _axes(x: Node, dim: int) -> list[int]:
    return [normal_dim(dim, len(x.shape))] if x.shape else []


@lowers_floating(aten._softmax.default)
def _softmax(b: Builder, out: torch.Tensor, x: Node, dim: int, half_to_float: bool) -> Node:
    [t] = terms(b, x.dtype, x)
    axes = _axes(x, dim)
    powers = (t - t.max(axes)).exp()
    return powers.share_of(powers.sum(axes)).as_(out.dtype)


@lowers_floating(*overloads("_safe_softmax"))
def _safe_softmax(b: Builder, out: torch.Tensor, x: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    """Rows where everything is -inf are zero instead of NaN."""
    [t] = terms(b, out.dtype, b.cast(x, out.dtype))
    axes = _axes(x, dim)
    highest = t.max(axes)
    powers = (t - highest).exp()
    share = powers.share_of(powers.sum(axes)).as_(out.dtype)
    return b.where(highest.equals(float("-inf")), 0, share, out.dtype)


@lowers_floating(aten._log_softmax.default)
def _log_softmax(b: Builder, out: torch.Tensor, x: Node, dim: int, half_to_float: bool) -> Node:
    [t] = terms(b, x.dtype, x)
    axes = _axes(x, dim)
    shifted = t - t.max(axes)
    whole = shifted.exp().sum(axes)
    if axes == [len(x.shape) - 1] and not b.on_gpu:
        # Along rows of a CPU's memory, ATen keeps the sums and their logarithms in half precision.
        return (shifted - whole.stored(x.dtype).log().stored(x.dtype)).as_(out.dtype)
    return (shifted - whole.log()).as_(out.dtype)


@lowers_floating(aten._softmax_backward_data.default)
def _softmax_backward(b: Builder, out: torch.Tensor, grad: Node, y: Node, dim: int, dtype: torch.dtype) -> Node:
    g, s = terms(b, y.dtype, grad, y)
    if b.on_gpu:  # where ATen has the products in memory first
        products = (g * s).stored(y.dtype)
        return (products - s * products.sum(_axes(y, dim))).as_(out.dtype)
    return (s * (g - (g * s).sum(_axes(y, dim)))).as_(out.dtype)


@lowers_floating(aten._log_softmax_backward_data.default)
def _log_softmax_backward(b: Builder, out: torch.Tensor, grad: Node, y: Node, dim: int, dtype: torch.dtype) -> Node:
    if not y.dtype.is_floating_point:
        raise NotLowered
    g, s = terms(b, y.dtype, grad, y)
    return (g - s.exp() * g.sum(_axes(y, dim))).as_(out.dtype)
