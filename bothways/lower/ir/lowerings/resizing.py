"""Images made larger or smaller by whole factors: each dimension is cut in two, and one part is repeated or averaged.

Everything else about pooling and interpolation stays with ATen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import Lowering, aten, lowers
from bothways.lower.ir.lowerings.term import Term, terms
from bothways.lower.ir.prims import Node, Shape


def _factors(large: Shape, small: Shape, count: int) -> list[int]:
    """How often the smaller sizes fit into the larger ones, in the last ``count`` dimensions."""
    pairs = list(zip(large[-count:], small[-count:], strict=True))
    if len(large) != count + 2 or any(one % other for one, other in pairs):
        raise NotLowered
    return [one // other for one, other in pairs]


def _cut(shape: Shape, factors: Sequence[int]) -> Shape:
    """Each of the last dimensions as two: the smaller size, and the factor."""
    last = shape[len(shape) - len(factors) :]
    cut = [part for size, factor in zip(last, factors, strict=True) for part in (size // factor, factor)]
    return (*shape[: len(shape) - len(factors)], *cut)


def _inner(count: int) -> list[int]:
    """Where the factors are in a shape that was cut."""
    return [3 + 2 * number for number in range(count)]


def repeated(b: Builder, x: Node, shape: Shape, factors: Sequence[int]) -> Node:
    """Each element as a block of the larger shape."""
    apart = b.reshape(x, _cut(x.shape, [1] * len(factors)))
    return b.reshape(b.map("copy", b.expand(apart, _cut(shape, factors)), dtype=x.dtype), shape)


def summed(x: Term, shape: Shape, factors: Sequence[int]) -> Term:
    """Each block as one element of the smaller shape."""
    return x.reshape(_cut(x.node.shape, factors)).sum(_inner(len(factors))).reshape(shape)


# Nearest neighbour --------------------------------------------------------------------------------------------------


def _exact(factors: Sequence[int], scales: Sequence[Any]) -> None:
    """ATen multiplies places with a float, which is exact for powers of two."""
    for factor, scale in zip(factors, scales or [None] * len(factors), strict=True):
        if factor & (factor - 1) or scale not in (None, float(factor)):
            raise NotLowered


def _nearest(count: int) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Node, size: Sequence[int], *scales: Any) -> Node:
        shape = tuple(out.shape)
        factors = _factors(shape, x.shape, count)
        _exact(factors, scales)
        return repeated(b, x, shape, factors)

    return lower


def _nearest_backward(count: int) -> Lowering:
    def lower(
        b: Builder, out: torch.Tensor, grad: Node, size: Sequence[int], shape: Sequence[int], *scales: Any
    ) -> Node:
        factors = _factors(grad.shape, tuple(shape), count)
        _exact(factors, scales)
        [g] = terms(b, out.dtype, grad)
        return summed(g, tuple(shape), factors).as_(out.dtype)

    return lower


for _count in (1, 2, 3):
    for _name in ("upsample_nearest", "_upsample_nearest_exact"):
        lowers(getattr(aten, f"{_name}{_count}d").default)(_nearest(_count))
        lowers(getattr(aten, f"{_name}{_count}d_backward").default)(_nearest_backward(_count))


# Averages -----------------------------------------------------------------------------------------------------------


def _averaged(b: Builder, out: torch.Tensor, x: Node, factors: Sequence[int]) -> Node:
    [t] = terms(b, out.dtype, x)
    cut = t.reshape(_cut(x.shape, factors))
    return b.reshape(cut.mean(_inner(len(factors))).as_(out.dtype), tuple(out.shape))


def _spread(b: Builder, out: torch.Tensor, grad: Node, factors: Sequence[int]) -> Node:
    [g] = terms(b, out.dtype, grad)
    count = 1
    for factor in factors:
        count *= factor
    return repeated(b, (g / count).as_(out.dtype), tuple(out.shape), factors)


@lowers(aten._adaptive_avg_pool2d.default)
def _adaptive(b: Builder, out: torch.Tensor, x: Node, size: Sequence[int]) -> Node:
    return _averaged(b, out, x, _factors(x.shape, tuple(out.shape), 2))


@lowers(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node) -> Node:
    return _spread(b, out, grad, _factors(tuple(out.shape), grad.shape, 2))


def _blocks(
    large: Shape, small: Shape, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> list[int]:
    """The factors of a pooling whose windows lie side by side and cover everything."""
    factors = _factors(large, small, 2)
    if any(padding) or any([*pair, *pair][:2] != factors for pair in (size, stride or size)):
        raise NotLowered
    return factors


@lowers(aten.avg_pool2d.default)
def _avg_pool(
    b: Builder, out: torch.Tensor, x: Node, size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:  # fmt: skip
    if divisor_override is not None or not out.dtype.is_floating_point:
        raise NotLowered
    return _averaged(b, out, x, _blocks(x.shape, tuple(out.shape), size, stride, padding))


@lowers(aten.avg_pool2d_backward.default)
def _avg_pool_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Node:  # fmt: skip
    if divisor_override is not None:
        raise NotLowered
    return _spread(b, out, grad, _blocks(tuple(out.shape), grad.shape, size, stride, padding))


# Channels for places ------------------------------------------------------------------------------------------------


@lowers(aten.pixel_shuffle.default)
def _pixel_shuffle(b: Builder, out: torch.Tensor, x: Node, factor: int) -> Node:
    *batch, channels, height, width = x.shape
    n = len(batch)
    apart = b.reshape(x, (*batch, channels // factor**2, factor, factor, height, width))
    moved = b.permute(apart, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return b.reshape(b.map("copy", moved, dtype=out.dtype), tuple(out.shape))


@lowers(aten.pixel_unshuffle.default)
def _pixel_unshuffle(b: Builder, out: torch.Tensor, x: Node, factor: int) -> Node:
    *batch, channels, height, width = x.shape
    n = len(batch)
    apart = b.reshape(x, (*batch, channels, height // factor, factor, width // factor, factor))
    moved = b.permute(apart, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return b.reshape(b.map("copy", moved, dtype=out.dtype), tuple(out.shape))


@lowers(aten.channel_shuffle.default)
def _channel_shuffle(b: Builder, out: torch.Tensor, x: Node, groups: int) -> Node:
    batch, channels, *places = x.shape
    apart = b.reshape(x, (batch, groups, channels // groups, *places))
    moved = b.permute(apart, (0, 2, 1, *range(3, len(apart.shape))))
    return b.reshape(b.map("copy", moved, dtype=out.dtype), tuple(out.shape))
