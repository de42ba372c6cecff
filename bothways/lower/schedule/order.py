"""The order in which kernels and calls of ATen run: that of the program, as far as what they depend on lets it be.

Of calls that could run one after the other either way, one that frees more memory than it takes goes first: the
gradient of a weight before that of what it was multiplied with, so that the activation is gone when that needs memory.

Where each kernel is a launch, those of single numbers that nothing waits for come last: the counters of fifty norms are
one launch then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bothways import ops
from bothways.lower.ir.prims import Buffer, Memory, Node
from bothways.lower.ir.sizes import size_hint
from bothways.lower.schedule.fusion import Call, Fusion, Group, Unit
from bothways.lower.schedule.memory import size_of


def in_order(fusion: Fusion, stored: Mapping[Node, Buffer], kept: Iterable[Memory]) -> list[Unit]:
    """The units so that each comes after those it depends on; ``kept`` are not freed, whoever reads them."""
    readers = _readers(fusion, stored, set(kept))
    done = 0
    last = _counters(fusion.units) if fusion.spreads else []
    waiting = [*(unit for unit in fusion.units if unit not in last), *last]
    ordered: list[Unit] = []
    while waiting:
        unit = next(unit for unit in waiting if not unit.reach & ~done)
        if isinstance(unit, Call) and unit.extern.is_check:
            unit = next((later for later in waiting if not later.reach & ~done and _may_overtake(later, stored)), unit)
        unit = _freeing(unit, waiting, done, readers)
        waiting.remove(unit)
        ordered.append(unit)
        done |= unit.bit
        for read in readers.values():
            read.discard(unit)
    return ordered


def _counters(units: Iterable[Unit]) -> list[Unit]:
    """Kernels of one number that no other unit depends on; what a call of ATen writes to, they read before it."""
    needed, written = 0, set[Memory]()
    for unit in units:
        needed |= unit.reach
        if isinstance(unit, Call) and ops.of(unit.extern.target).writes:
            written |= {node.memory for node in unit.extern.sources() if isinstance(node, Buffer)}
    groups = (unit for unit in units if isinstance(unit, Group) and not unit.bit & needed)
    return [
        group
        for group in groups
        if all(size == 1 for size in group.domain.sizes.values()) and written.isdisjoint(group.memories)
    ]


def _may_overtake(unit: Unit, stored: Mapping[Node, Buffer]) -> bool:
    """Whether a check may wait for it, so that kernels around the check are one routine: it only computes, into
    memory of the program's own, and raises nothing."""
    if isinstance(unit, Call):
        return unit.extern.is_pure and not unit.extern.may_fail and not unit.extern.is_view
    assert isinstance(unit, Group)
    written = (stored[member].memory for member in unit.members if member in stored)
    return all(memory.producer is not None for memory in written)


def _freeing(first: Unit, waiting: list[Unit], done: int, readers: Mapping[Memory, set[Unit]]) -> Unit:
    """The call that goes first, among those up to the next kernel."""
    if not isinstance(first, Call) or not first.extern.is_pure:
        return first
    for unit in waiting[waiting.index(first) :]:
        if not isinstance(unit, Call):
            break
        extern = unit.extern
        if unit.reach & ~done or not extern.is_pure or extern.is_view or (unit is not first and extern.may_fail):
            continue
        taken = sum(size_hint(size_of(memory)) for memory in extern.results if memory is not None)
        freed = sum(size_hint(size_of(memory)) for memory, read in readers.items() if read == {unit})
        if freed > taken:
            return unit
    return first


def _readers(fusion: Fusion, stored: Mapping[Node, Buffer], kept: set[Memory]) -> dict[Memory, set[Unit]]:
    """The units that read each memory which is freed then; what ATen may have viewed is not."""
    readers: dict[Memory, set[Unit]] = {}
    for unit in fusion.units:
        if isinstance(unit, Group):
            nodes = [leaf for member in unit.members for leaf in fusion.leaves(member)]
        else:
            assert isinstance(unit, Call)
            nodes = list(unit.extern.sources())
            if unit.extern.is_view:
                kept |= {node.memory for node in nodes if isinstance(node, Buffer)}
        for node in nodes:
            buffer = node if isinstance(node, Buffer) else stored.get(node)
            if buffer is not None:
                readers.setdefault(buffer.memory, set()).add(unit)
    return {memory: units for memory, units in readers.items() if memory.producer is not None and memory not in kept}
