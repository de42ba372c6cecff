"""Plans the memory of a program: what lives where, and from when to when.

Results that only kernels of one run read are parts of a work area that lives as long as the run, sharing its bytes
when their lives do not overlap. The others are tensors, freed after their last use or used again for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bothways.lower.ir.prims import Buffer, Extern, Memory
from bothways.lower.ir.sizes import Size
from bothways.lower.schedule.tree import Kernel

Run = list[Kernel] | Extern
ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass
class Area:
    """The work area of one run of kernels: where each memory is in it. ``size`` is what Python has to give it, ``own``
    what is in the frame of its function instead."""

    offsets: dict[Memory, int] = field(default_factory=dict)
    size: int = 0
    own: int = 0


@dataclass
class Plan:
    """``areas`` by run; ``last`` is the run in which a tensor is used last, for those that may go away then."""

    areas: dict[int, Area]
    last: dict[Memory, int]


def plan(runs: Sequence[Run], kept: Iterable[Memory], frame: int = 0) -> Plan:
    """Plan for runs in order; ``kept`` are inputs, constants and what is returned. Work areas of up to ``frame`` bytes
    need not be given."""
    used: dict[Memory, set[int]] = {}
    for number, run in enumerate(runs):
        for memory in memories_of(run):
            used.setdefault(memory, set()).add(number)
    kept = set(kept)
    areas: dict[int, Area] = {}
    for number, run in enumerate(runs):
        if isinstance(run, list):
            inner = {
                memory
                for memory, numbers in used.items()
                if numbers == {number} and memory not in kept and not isinstance(memory.producer, Extern)
            }
            area = areas[number] = area_of(run, inner)
            if type(area.size) is int and area.size <= frame:
                area.size, area.own = 0, area.size
    inside = {memory for area in areas.values() for memory in area.offsets}
    last = {memory: max(numbers) for memory, numbers in used.items() if memory not in kept | inside}
    return Plan(areas, last)


def memories_of(run: Run) -> list[Memory]:
    if isinstance(run, list):
        return list(dict.fromkeys(memory for kernel in run for memory in kernel.memories))
    read = [source.memory for source in run.sources() if isinstance(source, Buffer)]
    return list(dict.fromkeys([*read, *(memory for memory in run.results if memory is not None)]))


def size_of(memory: Memory) -> int:
    """Bytes from the first element to the last."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(memory.shape, memory.strides, strict=True))
    return extent * memory.dtype.itemsize


def area_of(kernels: list[Kernel], inner: set[Memory]) -> Area:
    """First fit in the order of first use."""
    lives: dict[Memory, tuple[int, int]] = {}
    for position, kernel in enumerate(kernels):
        for memory in kernel.memories:
            if memory in inner:
                lives[memory] = (lives.get(memory, (position,))[0], position)
    if any(isinstance(size_of(memory), Size) for memory in lives):
        return _area_of_symbols(lives)
    area = Area()
    placed: list[tuple[int, int, int]] = []  # offset, end, last use
    for memory, (first, last) in lives.items():
        size = -(-size_of(memory) // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, end, until in sorted(placed):
            if until >= first and start < offset + size and end > offset:
                offset = end
        area.offsets[memory] = offset
        area.size = max(area.size, offset + size)
        placed.append((offset, offset + size, last))
    return area


def _area_of_symbols(lives: dict[Memory, tuple[int, int]]) -> Area:
    """One behind the other: which of two sizes is larger is not known. A place is used again for the same size."""
    area = Area()
    free: list[tuple[int, int, int]] = []  # size, offset, last use
    for memory, (first, last) in lives.items():
        size = -(-size_of(memory) // ALIGNMENT) * ALIGNMENT
        spare = next((place for place in free if place[0] == size and place[2] < first), None)
        if spare is not None:
            free.remove(spare)
        offset = area.size if spare is None else spare[1]
        area.offsets[memory] = offset
        area.size = area.size if spare is not None else area.size + size
        free.append((size, offset, last))
    return area
