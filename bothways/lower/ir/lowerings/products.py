"""Matrix products on GPUs in half precision, whose sizes are to be multiples of a vector's: ATen computes them, of
operands with zeros behind their ends, and into memory whose end is never read.

A product with 50257 columns takes seven times as long as one with 50264.
"""

from __future__ import annotations

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.prims import Buffer, Node, Permute

HALVES = (torch.bfloat16, torch.float16)
ALIGNED = 8  # what sizes are to be multiples of
WORTH = 1 << 28  # multiplications from which on it pays


@lowers(aten.mm.default)
def _mm(b: Builder, out: torch.Tensor, one: Node, other: Node) -> Node:
    (rows, inner), columns = one.shape, other.shape[1]
    if not b.on_gpu or out.dtype not in HALVES or not all(type(size) is int for size in (rows, inner, columns)):
        raise NotLowered
    if rows * inner * columns < WORTH or not (rows % ALIGNED or inner % ALIGNED or columns % ALIGNED):
        raise NotLowered
    name = b.labels.get("name", "mm")
    if inner % ALIGNED == 0 and columns % ALIGNED == 0:
        # Rows that are no multiple matter little where those of the operand begin as they should.
        result = b.extern(aten.mm.default, (padded(b, one, whole=False), other), {}, out, name)
        assert isinstance(result, Buffer)
        return result
    one = padded(b, one, whole=True) if inner % ALIGNED else one
    other = padded(b, other, whole=True)
    fake = torch.empty((rows, _more(columns)), dtype=out.dtype, device="meta")
    result = b.extern(aten.mm.default, (one, other), {}, fake, name)
    assert isinstance(result, Buffer)
    return b.window(result, (rows, columns), result.strides)


def padded(b: Builder, node: Node, *, whole: bool) -> Node:
    """A matrix in memory that has zeros behind the end of its rows and columns; without them if not the ``whole`` is
    wanted."""
    if isinstance(node, Permute):
        return b.permute(padded(b, node.arg, whole=whole), node.dims)
    if isinstance(node, Buffer) and node.strides[0] == 1 and node.strides[1] != 1:
        return b.permute(padded(b, b.permute(node, (1, 0)), whole=whole), (1, 0))
    rows, columns = node.shape
    if rows % ALIGNED == 0 and columns % ALIGNED == 0:
        return node
    filled = b.known_padded.get(node)
    if filled is None:
        shape = _more(rows), _more(columns)
        parts = [(node, (0, 0))]
        if shape[1] > columns:
            parts.append((b.full((rows, shape[1] - columns), 0, node.dtype), (0, columns)))
        if shape[0] > rows:
            parts.append((b.full((shape[0] - rows, shape[1]), 0, node.dtype), (rows, 0)))
        filled = b.known_padded[node] = b.joined(shape, (shape[1], 1), node.dtype, parts)
    return filled if whole else b.window(filled, node.shape, filled.strides)


def _more(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
