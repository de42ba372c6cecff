"""Kernels that follow each other run together, as one routine: what only they need is in a work area of their own."""

from __future__ import annotations

from dataclasses import dataclass

from bothways.lower.ir.prims import Extern, Memory
from bothways.lower.schedule.joining import is_alone, joined
from bothways.lower.schedule.memory import Area, Plan, Run, memories_of, plan
from bothways.lower.schedule.steps import Lowered
from bothways.lower.schedule.tree import Kernel


@dataclass(frozen=True)
class Routine:
    """Kernels in the order they run, the memories they are given, and where the others are in the work area."""

    name: str
    kernels: tuple[Kernel, ...]
    memories: tuple[Memory, ...]
    area: Area

    @property
    def is_parallel(self) -> bool:
        return any(kernel.is_parallel for kernel in self.kernels)

    def __str__(self) -> str:
        return "\n\n".join([f"routine {self.name}", *map(str, self.kernels)])


@dataclass(frozen=True)
class Scheduled:
    """What a program runs in order: calls of ATen, and routines by the number of their run."""

    runs: list[Run]
    plan: Plan
    routines: dict[int, Routine]


def schedule(lowered: Lowered, *, takes_list: bool = False, frame: int = 0) -> Scheduled:
    """``takes_list`` where inputs go away when they were read last; ``frame`` is how large work areas may be that are
    in the frame of a routine."""
    returned = [buffer.memory for buffer in lowered.outputs if buffer is not None]
    held = lowered.held.union(returned)
    freed = [memory for memory in lowered.inputs if memory not in held] if takes_list else []
    runs = joined(_runs(lowered), [*lowered.inputs, *lowered.constants, *returned], freed)
    planned = plan(runs, [*lowered.inputs, *lowered.constants, *returned], frame)
    routines = {
        number: _routine(number, run, planned.areas[number]) for number, run in enumerate(runs) if isinstance(run, list)
    }
    return Scheduled(runs, planned, routines)


def _routine(number: int, kernels: list[Kernel], area: Area) -> Routine:
    memories = tuple(memory for memory in memories_of(kernels) if memory not in area.offsets)
    return Routine(f"run_{number}", tuple(kernels), memories, area)


def _runs(lowered: Lowered) -> list[Run]:
    """The steps, with kernels that follow each other together; what is in the place of a call by itself."""
    runs: list[Run] = []
    for step in lowered.steps:
        if isinstance(step, Extern):
            runs.append(step)
        elif runs and isinstance(runs[-1], list) and not is_alone(step) and not is_alone(runs[-1][0]):
            runs[-1].append(step)
        else:
            runs.append([step])
    return runs
