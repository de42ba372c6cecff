"""Transposed convolutions that end in few channels, as decoders of images do: one product of matrices, and a kernel
that adds up what lies over each other. Libraries have nothing for one channel, and take four times as long.

Everything else about convolutions stays with ATen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.joining import padded
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.prims import Buffer, Node

FEW = 4  # channels: from eight on a library is as fast
MOST = 1 << 18  # numbers between the product and the sums, which have to stay in a core's cache


@lowers(aten.convolution.default)
def _convolution(
    b: Builder, out: torch.Tensor, x: Node, weight: Node, bias: Node | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Node:  # fmt: skip
    sizes = (*x.shape, *weight.shape, *stride, *padding)
    is_usual = transposed and groups == 1 and not any(output_padding) and all(step == 1 for step in dilation)
    if b.on_gpu or not is_usual or len(x.shape) != 4 or not all(type(size) is int for size in sizes):
        raise NotLowered
    (down, right), (above, left), (tall, wide) = _pair(stride), _pair(padding), weight.shape[2:]
    if not all(node.dtype is torch.float32 for node in (x, weight)) or tall % down or wide % right or not x.numel:
        raise NotLowered
    images, inner, rows, columns = x.shape
    channels, over, beside = weight.shape[1], tall // down, wide // right
    # With zeros around an image, each of its places has as many neighbours to read as the others.
    shape = images, rows + 2 * (over - 1), columns + 2 * (beside - 1), inner
    between = shape[0] * shape[1] * shape[2] * channels * tall * wide
    # Who lets products be less precise has not said so of convolutions.
    if channels > FEW or between > MOST or torch.get_float32_matmul_precision() != "highest":
        raise NotLowered
    around = torch.empty(shape, dtype=x.dtype, device="meta")
    pixels = padded(b, around, b.permute(x, (0, 2, 3, 1)), (0, over - 1, beside - 1, 0), 0)
    matrix = b.reshape(pixels, (shape[0] * shape[1] * shape[2], inner))
    fake = torch.empty((matrix.shape[0], channels * tall * wide), dtype=x.dtype, device="meta")
    factors = b.reshape(weight, (inner, channels * tall * wide))
    product = b.extern(aten.mm.default, (matrix, factors), {}, fake, b.labels.get("name", "mm"))
    assert isinstance(product, Buffer)
    windows = b.reshape(product, (*shape[:3], channels, over, down, beside, right))
    whole: Node | None = None
    for row in range(over):
        for column in range(beside):
            part = b.slice(windows, 1, over - 1 - row, rows + over - 1)
            part = b.slice(part, 2, beside - 1 - column, columns + beside - 1)
            part = b.squeezed(b.slice(b.slice(part, 4, row, 1), 6, column, 1), (4, 6))
            part = _inside(b, _inside(b, part, 1, row, rows), 2, column, columns)
            whole = part if whole is None else b.map("add", whole, part, dtype=x.dtype)
    assert whole is not None
    if bias is not None:
        whole = b.map("add", whole, b.reshape(bias, (channels, 1, 1)), dtype=x.dtype)
    image = b.permute(b.map("copy", whole, dtype=x.dtype), (0, 3, 1, 4, 2, 5))
    image = b.reshape(image, (images, channels, (rows + over - 1) * down, (columns + beside - 1) * right))
    image = b.slice(b.slice(image, 2, above, out.shape[2]), 3, left, out.shape[3])
    return b.map("copy", image, dtype=x.dtype)


def _inside(b: Builder, part: Node, dim: int, first: int, count: int) -> Node:
    """What comes from the image itself: a factor that is infinite makes no zero of the zeros around it."""
    here = b.position(part.shape, dim)
    if first:
        part = b.where(b.map("ge", here, first, dtype=torch.bool, of=torch.int64), part, 0, part.dtype)
    if first + count < part.shape[dim]:
        part = b.where(b.map("lt", here, first + count, dtype=torch.bool, of=torch.int64), part, 0, part.dtype)
    return part


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    """A number for both dimensions; one stands for two."""
    return numbers[0], numbers[-1]
