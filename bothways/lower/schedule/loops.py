"""Chooses the loops of a kernel: their order, which run as one, and along which the vectors lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bothways.lower.ir.sizes import size_hint
from bothways.lower.schedule.fusion import Group

Steps = dict[int, int]  # loop of the domain -> how far one step goes in memory


@dataclass(frozen=True)
class Loop:
    """A loop of a kernel: one or more loops of the domain that memory lets run as one."""

    index: str
    size: int
    loops: tuple[int, ...]

    @property
    def inner(self) -> int:
        return self.loops[-1]


@dataclass(frozen=True)
class Access:
    """A read or a write, by its steps; ``weight`` says how much it matters for the order of loops."""

    steps: Steps
    weight: int


@dataclass(frozen=True)
class Nest:
    """The loops of a kernel. ``lanes`` is the kept loop that vectors lie along when it is not the innermost reduced
    one: rows of a matrix whose columns are summed."""

    kept: tuple[Loop, ...]
    reduced: tuple[Loop, ...]
    lanes: Loop | None

    @property
    def rows(self) -> int:
        return math.prod(loop.size for loop in self.kept)

    @property
    def row_length(self) -> int:
        return math.prod(loop.size for loop in self.reduced)


def choose(group: Group, accesses: Sequence[Access], separate: frozenset[int]) -> Nest:
    """Loops ordered by the memory of the access that matters most; ``separate`` ones keep their index."""
    domain = group.domain
    reduced = group.reduced_loops
    main = max(accesses, key=lambda access: (len(access.steps), access.weight), default=Access({}, 0)).steps
    order = sorted(domain.loops, key=lambda loop: -abs(size_hint(main.get(loop, 0))))
    kept = _collapsed([loop for loop in order if loop not in reduced], "i", group, accesses, separate)
    inside = _collapsed([loop for loop in order if loop in reduced], "r", group, accesses, separate)
    lanes = None
    if not inside:
        if kept:
            kept, lanes = kept[:-1], kept[-1]
    elif kept and size_hint(kept[-1].size) >= 8 and order[-1] == kept[-1].inner:
        kept, lanes = kept[:-1], kept[-1]
    return Nest(tuple(kept), tuple(inside), lanes)


def _collapsed(
    loops: list[int], letter: str, group: Group, accesses: Sequence[Access], separate: frozenset[int]
) -> list[Loop]:
    sizes = group.domain.sizes
    runs: list[list[int]] = []
    for loop in loops:
        if runs and not {loop, runs[-1][-1]} & separate and all(
            access.steps.get(runs[-1][-1], 0) == access.steps.get(loop, 0) * sizes[loop] for access in accesses
        ):
            runs[-1].append(loop)
        else:
            runs.append([loop])
    return [
        Loop(f"{letter}{number}", math.prod(sizes[loop] for loop in run), tuple(run)) for number, run in enumerate(runs)
    ]
