"""Matrix products on GPUs, whose rows should begin where vectors may: ATen computes them, into and out of padded memory.

A product in half precision with rows of 50257 elements takes three times as long as one with rows of 50264.
"""

from __future__ import annotations

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.prims import Map, Node, View

HALVES = (torch.bfloat16, torch.float16)
ALIGNED = 8  # elements that rows are multiples of
WORTH = 1 << 27  # multiplications from which on it pays


def mm_into_padded(one: torch.Tensor, other: torch.Tensor, shape: list[int], stride: int) -> torch.Tensor:
    """A product whose rows begin ``stride`` elements after each other."""
    result = torch.empty_strided(shape, (stride, 1), dtype=one.dtype, device=one.device)
    return torch.mm(one, other, out=result)


@lowers(aten.mm.default)
def _mm(b: Builder, out: torch.Tensor, one: Node, other: Node) -> Node:
    numbers = (*one.shape, *other.shape)
    if not b.on_gpu or out.dtype not in HALVES or not all(type(number) is int for number in numbers):
        raise NotLowered
    rows, columns = one.shape[0], other.shape[1]
    if rows * columns * one.shape[1] < WORTH:
        raise NotLowered
    is_padded = [pad(b, node) for node in (one, other)]
    name = b.labels.get("name", "mm")
    if columns % ALIGNED:
        fake = torch.empty_strided((rows, columns), (padded(columns), 1), dtype=out.dtype, device="meta")
        result = b.extern(mm_into_padded, (one, other, [rows, columns], padded(columns)), {}, fake, name)
    elif any(is_padded):
        result = b.extern(aten.mm.default, (one, other), {}, out, name)
    else:
        raise NotLowered
    assert isinstance(result, Node)
    return result


def padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def pad(b: Builder, node: Node) -> bool:
    """Let what is still to be computed have its rows in memory where vectors may begin. Whether it has."""
    while isinstance(node, View):
        node = node.arg
    if not isinstance(node, Map) or node.into is not None or len(node.shape) < 2 or node.shape[-1] % ALIGNED == 0:
        return False
    strides, step = [1], padded(node.shape[-1])
    for size in reversed(node.shape[1:-1]):
        strides.append(step)
        step *= size
    return b.lay_out(node, tuple(reversed([*strides, step])))
