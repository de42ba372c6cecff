"""Products of small matrices that routines run beside their kernels: to hand them to ATen, Python would take longer
than they take.

BLAS is asked for exactly what ATen would ask it, so the bits are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bothways.lower.ir.prims import Buffer, Extern, Filled, Memory, contiguous
from bothways.lower.ir.sizes import size_hint
from bothways.lower.schedule.steps import Step
from bothways.lower.schedule.tree import Kernel, Matrix, Product

aten = torch.ops.aten
# Operation -> where among its arguments the two matrices are.
PRODUCTS: dict[Any, int] = {aten.mm.default: 0, aten.addmm.default: 1}
MOST = 1 << 22  # multiplications: from there on they take so long that what is around them does not count


def with_products(steps: Sequence[Step]) -> list[Step]:
    """The steps, with small products as kernels."""
    return [(_kernel_of(step) if isinstance(step, Extern) else None) or step for step in steps]


def _kernel_of(extern: Extern) -> Kernel | None:
    """The kernel that does what a call of ATen does; None where ATen may do more than that, or it is large."""
    first = PRODUCTS.get(extern.target)
    if first is None or extern.kwargs or len(extern.args) != first + 2:
        return None
    *added, left, right = extern.args
    [memory] = extern.results
    if memory is None or not all(isinstance(one, Buffer) and one.dtype is torch.float32 for one in extern.args):
        return None
    if memory.dtype is not torch.float32 or memory.strides != contiguous(memory.shape):
        return None
    work = math.prod(map(size_hint, (*left.shape, right.shape[1])))
    if not 0 < work <= MOST:
        return None
    bias = _spread(added[0], memory) if added else None
    if added and bias is None:
        return None
    product = Product(_matrix(left), _matrix(right), bias, Matrix(memory, 0, memory.shape, memory.strides))
    memory.producer = Filled(memory.shape, memory.dtype, name=extern.name, origin=extern.origin)
    read = dict.fromkeys(one.memory for one in extern.args)
    names = {"row": 1, "column": 1}
    return Kernel((*read, memory), frozenset([memory]), (product,), extern.name, (extern.origin,), names)


def _matrix(buffer: Buffer) -> Matrix:
    return Matrix(buffer.memory, buffer.offset, buffer.shape, buffer.strides)


def _spread(buffer: Buffer, over: Memory) -> Matrix | None:
    """What is added, as a matrix of the size of the product, with steps of nothing where it is repeated."""
    missing = len(over.shape) - len(buffer.shape)
    if missing < 0:
        return None
    shape, strides = (1,) * missing + buffer.shape, (0,) * missing + buffer.strides
    pairs = list(zip(shape, over.shape, strict=True))
    if not all((type(own) is int and own == 1) or own == whole for own, whole in pairs):
        return None
    steps = tuple(0 if own != whole else step for (own, whole), step in zip(pairs, strides, strict=True))
    return Matrix(buffer.memory, buffer.offset, over.shape, steps)
