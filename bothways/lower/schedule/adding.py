"""Sums at computed places that routines run beside their kernels: as a call of ATen each would end the routine before
it, and take memory of its own for what it reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothways.lower.ir.lowerings.scattering import added_at
from bothways.lower.ir.prims import Buffer, Extern, Filled, contiguous
from bothways.lower.schedule.steps import Step
from bothways.lower.schedule.tree import Added, Kernel, Literal, Matrix


def with_added(steps: Sequence[Step]) -> list[Step]:
    """The steps, with what is added at computed places as kernels."""
    return [_kernel_of(step) if isinstance(step, Extern) and step.target is added_at else step for step in steps]


def _kernel_of(extern: Extern) -> Kernel:
    first, _, shape, dim, index, source = extern.args
    [memory] = extern.results
    assert memory is not None
    begin = _matrix(first) if isinstance(first, Buffer) else Literal(first, memory.dtype, True)
    into = Matrix(memory, 0, tuple(shape), contiguous(tuple(shape)))
    memory.producer = Filled(memory.shape, memory.dtype, name=extern.name, origin=extern.origin)
    added = Added(into, begin, dim, _matrix(index), _matrix(source))
    read = dict.fromkeys(one.memory for one in extern.args if isinstance(one, Buffer))
    return Kernel((*read, memory), frozenset([memory]), (added,), extern.name, (extern.origin,), {})


def _matrix(buffer: Any) -> Matrix:
    return Matrix(buffer.memory, buffer.offset, buffer.shape, buffer.strides)
