"""The largest value of each window of an image, and where it is. On CPUs windows that reach over the edge stay with
ATen, and so does the backward of images that lie channel by channel: a loop over the places of a window is too short to
be fast. On GPUs, where ATen's kernels take several times what memory does, images that lie pixel by pixel are kernels'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    if _is_of_pixels(b, out[0], kernel, dilation):
        return _largest_of_pixels(b, x, out[0], Windows.of(x, out[0], kernel, stride, padding))
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
    if _is_of_pixels(b, out, kernel, dilation):
        return _gradient_of_pixels(b, gradient, places, Windows.of(x, gradient, kernel, stride, padding))
    if any(padding) or any(step != 1 for step in dilation) or ceil_mode or _pair(stride, kernel) != factors:
        raise NotLowered
    covered = tuple(small * factor for small, factor in zip(places.shape[-2:], factors, strict=True))
    if len(shape) != 4 or covered != shape[2:] or out.stride(1) != 1 or shape[1] < FEWEST_CHANNELS:
        raise NotLowered
    here = _places(b, shape, shape[-1], 1)
    taken = b.map("eq", repeated(b, places, shape, factors), here, dtype=torch.bool, of=torch.int64)
    return b.where(taken, repeated(b, gradient, shape, factors), 0, x.dtype)


# Images on a GPU whose channels lie side by side. What a thread reads of an image are some channels of a pixel, whose
# place it computes.


@dataclass(frozen=True)
class Windows:
    """How windows lie on an image, along each of its two dimensions."""

    sizes: tuple[int, int]
    steps: tuple[int, int]
    before: tuple[int, int]  # how far the first one reaches over the edge
    image: tuple[int, int]
    count: tuple[int, int]

    @classmethod
    def of(
        cls, image: Any, pooled: Any, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
    ) -> Windows:
        sizes = _pair(kernel)
        steps, before = _pair(stride, kernel), _pair(padding, (0,))
        return cls(sizes, steps, before, tuple(image.shape[2:]), tuple(pooled.shape[2:]))


def _is_of_pixels(b: Builder, like: torch.Tensor, kernel: Sequence[int], dilation: Sequence[int]) -> bool:
    height, width = _pair(kernel)
    if not b.on_gpu or height * width > LARGEST or any(step != 1 for step in dilation) or len(like.shape) != 4:
        return False
    known = all(type(size) is int for size in like.shape)
    return known and like.stride(1) == 1 and like.shape[1] >= FEWEST_CHANNELS and like.numel() < 2**31


def _along(b: Builder, shape: Sequence[int], dim: int) -> Node:
    return b.cast(b.position(tuple(shape), dim), torch.int32)


def _whole(b: Builder, op: str, *operands: Any) -> Node:
    return b.map(op, *operands, dtype=torch.int32)


def _pixel(b: Builder, image: Node, row: Node, column: Node) -> Node:
    """The channels of an image at places that are computed."""
    *outer, height, width = image.shape
    flat = b.reshape(b.stored(image), (*outer, height * width))
    shape = row.shape
    index = _whole(b, "add", _whole(b, "mul", row, width), column)
    taken = b.take(flat, 2, b.reshape(index, (*shape[:2], shape[2] * shape[3])))
    return b.reshape(b.map("copy", taken, dtype=image.dtype), shape)


def _largest_of_pixels(b: Builder, x: Node, out: torch.Tensor, windows: Windows) -> tuple[Node, Node]:
    """What lies over the edge is the pixel at the edge, which is in the window: it is the largest at most once more."""
    shape = tuple(out.shape)

    def places(dim: int) -> list[Node]:
        first = _whole(b, "mul", _along(b, shape, dim + 2), windows.steps[dim])
        each = [_whole(b, "add", first, place - windows.before[dim]) for place in range(windows.sizes[dim])]
        last = windows.image[dim] - 1
        return [_whole(b, "clamp_max", _whole(b, "clamp_min", place, 0), last) for place in each]

    largest: Node | None = None
    for row in places(0):
        for column in places(1):
            value = _pixel(b, x, row, column)
            here = _whole(b, "add", _whole(b, "mul", row, windows.image[1]), column)
            if largest is None:
                largest, taken = value, here
                continue
            is_larger = either(
                b,
                b.map("gt", value, largest, dtype=torch.bool, of=x.dtype),
                b.map("isnan", value, dtype=torch.bool, of=x.dtype),
            )
            largest = b.where(is_larger, value, largest, x.dtype)
            taken = b.where(is_larger, here, taken, torch.int32)
    assert largest is not None
    return largest, b.cast(taken, torch.int64)


def _gradient_of_pixels(b: Builder, gradient: Node, places: Node, windows: Windows) -> Node:
    """Each pixel looks at the windows that it is in, in order, whether they took it."""
    shape = (*gradient.shape[:2], *windows.image)
    here = _whole(b, "add", _whole(b, "mul", _along(b, shape, 2), windows.image[1]), _along(b, shape, 3))

    def around(dim: int) -> list[tuple[Node, Node]]:
        """The windows that a pixel may be in, the first of them first, and whether there are such."""
        size, step, count = windows.sizes[dim], windows.steps[dim], windows.count[dim]
        last = _whole(b, "trunc_divide", _whole(b, "add", _along(b, shape, dim + 2), windows.before[dim]), step)
        each = [_whole(b, "sub", last, before) for before in reversed(range(-(-size // step)))]
        inside = [_whole(b, "clamp_max", _whole(b, "clamp_min", one, 0), count - 1) for one in each]
        return [
            (place, b.map("eq", one, place, dtype=torch.bool, of=torch.int32))
            for one, place in zip(each, inside, strict=True)
        ]

    whole: Node | None = None
    wide = torch.float64 if gradient.dtype is torch.float64 else torch.float32
    for row, is_row in around(0):
        for column, is_column in around(1):
            took = b.map("eq", _pixel(b, places, row, column), here, dtype=torch.bool, of=torch.int32)
            there = b.map("logical_and", is_row, is_column, dtype=torch.bool)
            took = b.map("logical_and", there, took, dtype=torch.bool)
            part = b.where(took, b.cast(_pixel(b, gradient, row, column), wide), 0, wide)
            whole = part if whole is None else b.map("add", whole, part, dtype=wide)
    assert whole is not None
    return b.cast(whole, gradient.dtype)
