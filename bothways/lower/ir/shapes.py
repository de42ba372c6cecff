"""Arithmetic on shapes and strides that views and fusion share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bothways.lower.ir.prims import Shape


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The common shape; the caller knows that there is one."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def reshaped_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """The strides that show the same elements in the same order under another shape, if there are any."""
    if math.prod(shape) == 0:
        return tuple(1 for _ in new)
    blocks = _contiguous_blocks(shape, strides)
    reshaped: list[int] = []
    position = len(new) - 1
    for size, stride in reversed(blocks):
        covered = 1
        while position >= 0 and (covered != size or new[position] == 1):
            if size % (covered * new[position]) != 0:
                return None
            reshaped.append(stride * covered)
            covered *= new[position]
            position -= 1
        if covered != size:
            return None
    while position >= 0 and new[position] == 1:
        reshaped.append(1)
        position -= 1
    return tuple(reversed(reshaped)) if position < 0 else None


def _contiguous_blocks(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Size and innermost stride of each run of dimensions that is as good as one."""
    blocks: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if blocks and blocks[-1][1] == stride * size:
            blocks[-1] = (blocks[-1][0] * size, stride)
        else:
            blocks.append((size, stride))
    return blocks


def leaves_range(size: int, start: int, length: int, step: int = 1) -> bool:
    """Whether some of these elements lie outside of a dimension of that size: shapes alone do not refuse an index, and
    ATen is to. Of sizes that are not known yet those of now are asked: where they are inside, capture has noted that
    later ones are, and where they are outside, ATen refuses or takes any."""
    numbers: tuple[Any, ...] = (size, start, length, step)
    size, start, length, step = (number if type(number) is int else number.hint for number in numbers)
    return start < 0 or length < 0 or (length > 0 and start + (length - 1) * step >= size)


def normal_dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def normal_dims(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Dimensions from the front, in order; none given means all."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(normal_dim(dim, rank) for dim in listed)) if rank else ()
