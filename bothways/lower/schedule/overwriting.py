"""Finds results that may take the place of what their kernels read last: one tensor of memory instead of two.

That is legal where a kernel reads, of the memory that is not needed any more, just the element that it then writes, and
nothing reads the old values after that. What is asked is the loop tree: every load and store is in it, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from bothways.lower.ir.prims import Join, Memory
from bothways.lower.schedule.tree import Kernel, Load, Store


def overwritten(kernels: Sequence[Kernel], dead: Iterable[Memory], new: Iterable[Memory]) -> dict[Memory, Memory]:
    """For memories that these kernels write first, the ones whose place they take; ``dead`` are not read later."""
    waiting, pairs = list(dead), dict[Memory, Memory]()
    if not waiting:
        return pairs
    steps = [list(_accesses(kernel.body)) for kernel in kernels]
    for memory in new:
        old = next((one for one in waiting if _are_alike(one, memory) and _may_take(steps, one, memory)), None)
        if old is not None:
            waiting.remove(old)
            pairs[memory] = old
    return pairs


def _are_alike(one: Memory, other: Memory) -> bool:
    return (one.shape, one.strides, one.dtype) == (other.shape, other.strides, other.dtype)


def _may_take(steps: list[list[Load | Store]], old: Memory, new: Memory) -> bool:
    if isinstance(new.producer, Join):
        return False  # written part by part
    writing = [number for number, inside in enumerate(steps) if any(_writes(step, new) for step in inside)]
    reading = [number for number, inside in enumerate(steps) if any(step.element.memory is old for step in inside)]
    if len(writing) != 1 or max(reading, default=0) > writing[0]:
        return False
    inside = steps[writing[0]]
    stores = [position for position, step in enumerate(inside) if _writes(step, new)]
    touches = [position for position, step in enumerate(inside) if step.element.memory is old]
    if len(stores) != 1 or max(touches, default=-1) > stores[0]:
        return False
    store = inside[stores[0]].element
    elements = [inside[position].element for position in touches]
    return all((one.offset, one.steps, one.taken) == (store.offset, store.steps, None) for one in elements)


def _writes(step: Load | Store, memory: Memory) -> bool:
    return isinstance(step, Store) and step.element.memory is memory


def _accesses(part: Any) -> Iterator[Load | Store]:
    """What a part of a tree reads and writes, in order."""
    if isinstance(part, Load):
        yield from _accesses(part.element.taken)
        yield part
    elif isinstance(part, Store):
        yield from _accesses(part.value)
        yield part
    elif isinstance(part, tuple):
        for inside in part:
            yield from _accesses(inside)
    elif is_dataclass(part):
        for one in fields(part):
            yield from _accesses(getattr(part, one.name))
