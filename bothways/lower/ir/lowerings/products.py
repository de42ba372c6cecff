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
    is_across = _lies_across(one)
    if inner % ALIGNED == 0 and columns % ALIGNED == 0 and not is_across:
        raise NotLowered  # rows that lie one after the other begin as they should, however many there are
    one = padded(b, one) if inner % ALIGNED or is_across else one
    other = padded(b, other)
    fake = torch.empty((one.shape[0], other.shape[1]), dtype=out.dtype, device="meta")
    result = b.extern(aten.mm.default, (one, other), {}, fake, b.labels.get("name", "mm"))
    assert isinstance(result, Buffer)
    wanted = b.window(result, (rows, columns), result.strides)
    # What begins as the memory does, and lies as it does, would leave as it is: with all of the memory.
    return wanted if other.shape[1] > columns else b.map("copy", wanted, dtype=out.dtype)


def padded(b: Builder, node: Node) -> Node:
    """A matrix in memory that has zeros behind the end of its rows and columns."""
    if isinstance(node, Permute):
        return b.permute(padded(b, node.arg), node.dims)
    if _lies_across(node):
        return b.permute(padded(b, b.permute(node, (1, 0))), (1, 0))
    rows, columns = node.shape
    if rows % ALIGNED == 0 and columns % ALIGNED == 0:
        return node
    # A window on the same memory is the same, though another lowering has made it.
    key = (node.memory, node.shape, node.strides, node.offset) if isinstance(node, Buffer) else node
    filled = b.known_padded.get(key)
    if filled is None:
        shape = _more(rows), _more(columns)
        parts = [(node, (0, 0))]
        if shape[1] > columns:
            parts.append((b.full((rows, shape[1] - columns), 0, node.dtype), (0, columns)))
        if shape[0] > rows:
            parts.append((b.full((shape[0] - rows, shape[1]), 0, node.dtype), (rows, 0)))
        filled = b.known_padded[key] = b.joined(shape, (shape[1], 1), node.dtype, parts)
    return filled


def _lies_across(node: Node) -> bool:
    """Whether it is columns that lie side by side in memory."""
    if isinstance(node, Permute):
        return node.dims == (1, 0) and not _lies_across(node.arg)
    return isinstance(node, Buffer) and node.strides[0] == 1 and node.strides[1] != 1


def _more(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
