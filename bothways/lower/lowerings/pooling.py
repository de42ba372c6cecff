"""The largest value of each window of an image, and where it is; windows that reach over the edge stay with ATen.

So does the backward: a loop over the places of a window is too short to be fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.lower.builder import Builder, NotLowered
from bothways.lower.lowerings.registry import aten, lowers
from bothways.lower.lowerings.term import either
from bothways.lower.prims import Node

LARGEST = 16  # elements of a window that is written out


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
    down_to = b.map("mul", b.position(largest.shape, first), down * x.shape[-1], dtype=torch.int64)
    right_to = b.map("mul", b.position(largest.shape, first + 1), right, dtype=torch.int64)
    corner = b.map("add", down_to, right_to, dtype=torch.int64)
    return largest, b.map("add", corner, place, dtype=torch.int64)
