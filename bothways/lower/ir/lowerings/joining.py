"""Tensors put together: each part is written where it belongs in one memory, by the kernel that computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.fake.rules.views import sliced
from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.prims import Node, Shape, is_dense
from bothways.lower.ir.shapes import normal_dim, normal_dims
from bothways.lower.ir.sizes import Size, larger

# Each part may become a kernel. With more of them, a call of ATen is cheaper to build and as fast.
MAX_PARTS = 8
MAX_NUMBERS = 4096  # parts of one element each, of which a kernel for a CPU writes many


def concatenated(b: Builder, out: torch.Tensor, parts: Sequence[Node], dim: int) -> Node:
    are_numbers = not b.on_gpu and all(part.numel == 1 for part in parts)
    if len(parts) > (MAX_NUMBERS if are_numbers else MAX_PARTS):
        raise NotLowered
    placed, start = [], 0
    for part in parts:
        placed.append((part, _along(len(part.shape), dim, start)))
        start += part.shape[dim]
    return b.joined(tuple(out.shape), out.stride(), out.dtype, placed)


def _along(rank: int, dim: int, start: int) -> Shape:
    return tuple(start if index == dim else 0 for index in range(rank))


@lowers(aten.cat.default)
def _cat(b: Builder, out: torch.Tensor, parts: Sequence[Node], dim: int = 0) -> Node:
    return concatenated(b, out, parts, normal_dim(dim, len(out.shape)))


@lowers(aten.stack.default)
def _stack(b: Builder, out: torch.Tensor, parts: Sequence[Node], dim: int = 0) -> Node:
    dim = normal_dim(dim, len(out.shape))
    shape = tuple(1 if index == dim else size for index, size in enumerate(out.shape))
    return concatenated(b, out, [b.reshape(part, shape) for part in parts], dim)


# Padding ------------------------------------------------------------------------------------------------------------


def padded(b: Builder, out: torch.Tensor, x: Node, before: Shape, value: Any) -> Node:
    """``x`` inside the result's shape, from ``before`` on; the rest is one value."""
    if not x.numel:
        raise NotLowered
    parts: list[tuple[Node, Shape]] = [(b.cast(x, out.dtype), before)]
    # Slabs, each as wide as what was covered so far: the first along the last dimension.
    covered, first = list(x.shape), list(before)
    for dim in reversed(range(len(out.shape))):
        after = out.shape[dim] - first[dim] - covered[dim]
        for start, length in ((0, first[dim]), (first[dim] + covered[dim], after)):
            if _may_be_some(length):
                shape = tuple(length if index == dim else size for index, size in enumerate(covered))
                corner = tuple(start if index == dim else position for index, position in enumerate(first))
                parts.append((b.full(shape, value, out.dtype), corner))
        covered[dim], first[dim] = out.shape[dim], 0
    if len(parts) == 1:
        return b.map("copy", parts[0][0], dtype=out.dtype)
    return b.joined(tuple(out.shape), out.stride(), out.dtype, parts)


def _may_be_some(count: Any) -> bool:
    """Whether there is anything. Of a number that changes it is not asked: it may be nothing with every other call."""
    return isinstance(count, Size) or bool(count)


@lowers(aten.constant_pad_nd.default)
def _constant_pad(b: Builder, out: torch.Tensor, x: Node, pads: Sequence[int], value: Any = 0) -> Node:
    before = [0] * len(x.shape)
    for position in range(0, len(pads), 2):
        dim = len(x.shape) - 1 - position // 2
        start, end = pads[position], pads[position + 1]
        cut, behind = larger(-start, 0), larger(-end, 0)
        if _may_be_some(cut) or _may_be_some(behind):
            x = b.slice(x, dim, cut, x.shape[dim] - cut - behind)
        before[dim] = larger(start, 0)
    return padded(b, out, x, tuple(before), value)


@lowers(aten.slice_backward.default)
def _slice_backward(
    b: Builder, out: torch.Tensor, grad: Node, shape: Sequence[int], dim: int, start: int, end: int, step: int
) -> Node:
    dim = normal_dim(dim, len(shape))
    if step != 1:
        raise NotLowered
    first = sliced(start, end, 1, shape[dim])[0]
    return padded(b, out, grad, _along(len(shape), dim, first), 0)


@lowers(aten.select_backward.default)
def _select_backward(
    b: Builder, out: torch.Tensor, grad: Node, shape: Sequence[int], dim: int, index: int
) -> Node:
    dim = normal_dim(dim, len(shape))
    part = b.reshape(grad, tuple(1 if other == dim else size for other, size in enumerate(shape)))
    return padded(b, out, part, _along(len(shape), dim, normal_dim(index, shape[dim])), 0)


# Replacing a part ---------------------------------------------------------------------------------------------------


def _replaced(b: Builder, out: torch.Tensor, x: Node, part: Node, dim: int, start: int) -> Node:
    if not is_dense(tuple(out.shape), out.stride()):
        raise NotLowered  # ATen copies all the memory that a tensor lies in, and those who read it know its strides
    if part.shape != tuple(part.shape[dim] if other == dim else size for other, size in enumerate(x.shape)):
        raise NotLowered  # shapes alone do not refuse it, and ATen is to
    end = start + part.shape[dim]
    parts = [(b.cast(part, out.dtype), _along(len(x.shape), dim, start))]
    for first, length in ((0, start), (end, x.shape[dim] - end)):
        if type(length) is not int or length:  # one that is a symbol may be nothing, which a loop can be told
            parts.append((b.slice(x, dim, first, length), _along(len(x.shape), dim, first)))
    return b.joined(tuple(out.shape), out.stride(), out.dtype, parts)


@lowers(aten.slice_scatter.default)
def _slice_scatter(
    b: Builder, out: torch.Tensor, x: Node, part: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Node:
    if step != 1:
        raise NotLowered
    dim = normal_dim(dim, len(x.shape))
    first, length = sliced(start, end, 1, x.shape[dim])
    if length != part.shape[dim]:
        raise NotLowered
    return _replaced(b, out, x, part, dim, first)


@lowers(aten.select_scatter.default)
def _select_scatter(b: Builder, out: torch.Tensor, x: Node, part: Node, dim: int, index: int) -> Node:
    dim = normal_dim(dim, len(x.shape))
    part = b.reshape(part, tuple(1 if other == dim else size for other, size in enumerate(x.shape)))
    return _replaced(b, out, x, part, dim, normal_dim(index, x.shape[dim]))


# The same elements in other places ----------------------------------------------------------------------------------


@lowers(aten.flip.default)
def _flip(b: Builder, out: torch.Tensor, x: Node, dims: Sequence[int]) -> Node:
    if not dims:
        return b.map("copy", x, dtype=out.dtype)
    return b.flipped(x, normal_dims(dims, len(x.shape)))


@lowers(aten.roll.default)
def _roll(b: Builder, out: torch.Tensor, x: Node, shifts: Any, dims: Any = ()) -> Node:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if len(shifts) != 1 or len(dims) != 1:
        raise NotLowered
    dim = normal_dim(dims[0], len(x.shape))
    shift = shifts[0] % x.shape[dim]
    if not shift:
        return b.map("copy", x, dtype=out.dtype)
    kept = x.shape[dim] - shift
    return concatenated(b, out, [b.slice(x, dim, kept, shift), b.slice(x, dim, 0, kept)], dim)


@lowers(aten.repeat.default)
def _repeat(b: Builder, out: torch.Tensor, x: Node, repeats: Sequence[int]) -> Node:
    shape = (1,) * (len(repeats) - len(x.shape)) + x.shape
    pairs = tuple(size for pair in zip(repeats, shape, strict=True) for size in pair)
    apart = b.reshape(x, tuple(number for size in shape for number in (1, size)))
    return b.reshape(b.map("copy", b.expand(apart, pairs), dtype=out.dtype), tuple(out.shape))
