"""Finds results that may take the memory of what their kernels read last: one tensor of memory instead of two.

That is legal if the kernel reads, of memory that nothing reads afterwards, only the element it then writes. The loop
tree tells, since every load and store is in it, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from bothways.lower.ir.prims import Join, Memory
from bothways.lower.schedule.tree import Added, Kernel, Load, Product, Store


def overwritten(kernels: Sequence[Kernel], dead: Iterable[Memory], new: Iterable[Memory]) -> dict[Memory, Memory]:
    """For memories that these kernels write first, the ones whose place they take; ``dead`` are not read later."""
    waiting, pairs = list(dead), dict[Memory, Memory]()
    if not waiting:
        return pairs
    places = Places(kernels)
    for memory in new:
        old = next((one for one in waiting if _are_alike(one, memory) and _may_take(places, one, memory)), None)
        if old is not None:
            waiting.remove(old)
            pairs[memory] = old
    return pairs


class Places:
    """Where kernels touch each memory, and where they write to it: for the number of a kernel, positions in it. A step
    has hundreds of memories and kernels, each of which would be looked through for each of the others."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.steps = [_accesses(kernel.body, []) for kernel in kernels]
        self._touched: dict[int, dict[int, list[int]]] = {}
        self._written: dict[int, dict[int, list[int]]] = {}
        for number, inside in enumerate(self.steps):
            for position, step in enumerate(inside):
                memory = id(step.element.memory)
                self._touched.setdefault(memory, {}).setdefault(number, []).append(position)
                if isinstance(step, Store):
                    self._written.setdefault(memory, {}).setdefault(number, []).append(position)

    def touched(self, memory: Memory) -> dict[int, list[int]]:
        return self._touched.get(id(memory), {})

    def written(self, memory: Memory) -> dict[int, list[int]]:
        return self._written.get(id(memory), {})


def _are_alike(one: Memory, other: Memory) -> bool:
    return (one.shape, one.strides, one.dtype) == (other.shape, other.strides, other.dtype)


def _may_take(places: Places, old: Memory, new: Memory) -> bool:
    if isinstance(new.producer, Join):
        return False  # written part by part
    writing, touching = places.written(new), places.touched(old)
    if len(writing) != 1:
        return False
    [(number, stores)] = writing.items()
    touches = touching.get(number, [])
    if max(touching, default=0) > number or len(stores) != 1 or max(touches, default=-1) > stores[0]:
        return False
    inside = places.steps[number]
    store = inside[stores[0]].element
    elements = [inside[position].element for position in touches]
    return all((one.offset, one.steps, one.taken) == (store.offset, store.steps, None) for one in elements)


def _accesses(part: Any, steps: list[Load | Store]) -> list[Load | Store]:
    """Add what a part of a tree reads and writes, in order."""
    if isinstance(part, tuple):
        for inside in part:
            _accesses(inside, steps)
    elif isinstance(part, Load):
        if part.element.taken is not None:
            _accesses(part.element.taken, steps)
        steps.append(part)
    elif isinstance(part, Store):
        _accesses(part.value, steps)
        steps.append(part)
    elif isinstance(part, (Product, Added)):
        steps += part.accesses()
    else:
        kind: Any = type(part)
        for name in _parts_of(kind):
            _accesses(getattr(part, name), steps)
    return steps


@functools.cache
def _parts_of(kind: type) -> tuple[str, ...]:
    """The names of what a thing of a tree may have parts in: asked once, since there are tens of thousands of them."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else ()
