"""The largest value of each window of an image, and where it is; windows that reach over the edge stay with ATen.

So does the backward of images that lie channel by channel: a loop over the places of a window is too short to be fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.lowerings.resizing import repeated
from bothways.lower.ir.lowerings.term import either
from bothways.lower.ir.prims import Node

LARGEST = 16  # elements of a window that is written out
FEWEST_CHANNELS = 8  # of an image whose pixels lie side by side: the innermost loop goes over them


def _pair(value: Sequence[int], default: Sequence[int] = ()) -> tuple[int, int]:
    """A size for both dimensions; one number stands for two."""
    sizes = list(value) or list(default)
    return (sizes[0], sizes[-1])


@lowers(aten.max_pool2d_with_indices.default)
def _max_pool(
    b: Builder, out: Any, x: Node, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[Node, Node]:  # fmt: skip
    """As ATen does it: the first of the largest, where a NaN is larger than everything."""
    (height, width), (down, right) = _pair(kernel), _pair(stride, kernel)
    if any(padding) or any(step != 1 for step in dilation) or ceil_mode or height * width > LARGEST:
        raise NotLowered
    if x.shape[-1] * x.shape[-2] >= 2**31:
        raise NotLowered
    rows, columns = out[0].shape[-2:]
    first = len(x.shape) - 2
    largest: Node | None = None
    for row in range(height):
        for column in range(width):
            lines = b.slice(x, first, row, rows, down)
            value = b.map("copy", b.slice(lines, first + 1, column, columns, right), dtype=x.dtype)
            if largest is None:
                largest, place = value, b.full(value.shape, 0, torch.int32)
                continue
            taken = either(
                b,
                b.map("gt", value, largest, dtype=torch.bool, of=x.dtype),
                b.map("isnan", value, dtype=torch.bool, of=x.dtype),
            )
            largest = b.where(taken, value, largest, x.dtype)
            place = b.where(taken, row * x.shape[-1] + column, place, torch.int32)
    assert largest is not None
    corner = _places(b, largest.shape, down * x.shape[-1], right)
    return largest, b.map("add", corner, place, dtype=torch.int64)


def _places(b: Builder, shape: Sequence[int], down: int, right: int) -> Node:
    """The number of each place of an image, row after row, where the next is so many places down or to the right."""
    last = len(shape) - 1
    row = b.map("mul", b.position(tuple(shape), last - 1), down, dtype=torch.int64)
    column = b.map("mul", b.position(tuple(shape), last), right, dtype=torch.int64)
    return b.map("add", row, column, dtype=torch.int64)


@lowers(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(
    b: Builder, out: torch.Tensor, gradient: Node, x: Node, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, places: Node,
) -> Node:  # fmt: skip
    """Windows side by side: each place of one looks whether it is the one that was taken."""
    factors, shape = _pair(kernel), tuple(out.shape)
    if any(padding) or any(step != 1 for step in dilation) or ceil_mode or _pair(stride, kernel) != factors:
        raise NotLowered
    covered = tuple(small * factor for small, factor in zip(places.shape[-2:], factors, strict=True))
    if len(shape) != 4 or covered != shape[2:] or out.stride(1) != 1 or shape[1] < FEWEST_CHANNELS:
        raise NotLowered
    here = _places(b, shape, shape[-1], 1)
    taken = b.map("eq", repeated(b, places, shape, factors), here, dtype=torch.bool, of=torch.int64)
    return b.where(taken, repeated(b, gradient, shape, factors), 0, x.dtype)
