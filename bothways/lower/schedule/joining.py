"""Decides which kernels and products that follow each other become one routine.

Python enters a routine once, but it holds everything it reads and writes until its end. So routines are joined only
while that does not raise the program's peak of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bothways.lower.ir.prims import Extern, Memory
from bothways.lower.ir.sizes import size_at
from bothways.lower.schedule.memory import Run, area_of, memories_of, size_of
from bothways.lower.schedule.overwriting import overwritten
from bothways.lower.schedule.tree import Added, Kernel, Product

LITTLE = 1 << 18  # bytes that a program may hold without question: a part of a core's own cache
TIMES = 1, 16  # how many times as large sizes may be that are not known


def joined(runs: Sequence[Run], kept: Iterable[Memory], freed: Iterable[Memory]) -> list[Run]:
    """The runs, with those together that are better one; ``kept`` are inputs, constants and what is returned,
    ``freed`` those inputs that go away when they were read last."""
    if not any(isinstance(run, list) and is_alone(run[0]) for run in runs):
        return list(runs)
    lives = _Lives(runs, set(kept), set(freed))
    result: list[Run] = []
    begin = 0
    while begin < len(runs):
        end = begin
        while end < len(runs) and isinstance(runs[end], list):
            end += 1
        if end == begin:
            result.append(runs[begin])
            begin += 1
        else:
            result += lives.joined(begin, end)
            begin = end
    return result


def is_alone(kernel: Kernel) -> bool:
    """Whether it is in the place of a call of ATen: a routine of its own, where joining it would take more memory."""
    return isinstance(kernel.body[0], (Product, Added))


class _Lives:
    """What is in memory while each run runs."""

    def __init__(self, runs: Sequence[Run], kept: set[Memory], freed: set[Memory]) -> None:
        self._runs = runs
        self._first: dict[Memory, int] = {}
        self._last: dict[Memory, int] = {}
        for number, run in enumerate(runs):
            for memory in memories_of(run):
                self._first.setdefault(memory, number)
                self._last[memory] = number
        self._inner = {memory for memory in self._last if memory not in kept and not _is_of_aten(memory)}
        for memory in kept & self._last.keys():
            if memory.producer is None:
                self._first[memory] = -1  # it is there from the beginning
            if memory not in freed:
                self._last[memory] = len(runs)
        self._bytes = {times: {memory: size_at(size_of(memory), times) for memory in self._last} for times in TIMES}
        self._begins: dict[int, list[Memory]] = {}
        for memory, first in self._first.items():
            self._begins.setdefault(first, []).append(memory)
        self._live = {times: self._held_alone(times) for times in TIMES}

    def _held_alone(self, times: int) -> list[int]:
        """Bytes that are held while each run runs, where every one is by itself."""
        change = [0] * (len(self._runs) + 2)
        for memory, count in self._bytes[times].items():
            change[max(self._first[memory], 0)] += count
            change[self._last[memory] + 1] -= count
        held, now = [], 0
        for number in range(len(self._runs)):
            now += change[number]
            held.append(now - self._taken_over(number, times))
        return held

    def _taken_over(self, number: int, times: int) -> int:
        """Bytes of new memories that take the place of others in a run."""
        run = self._runs[number]
        if isinstance(run, Extern):
            return 0
        memories = memories_of(run)
        new = [memory for memory in memories if self._first[memory] == number]
        dead = [memory for memory in memories if self._first[memory] < number == self._last[memory]]
        return sum(self._bytes[times][memory] for memory in overwritten(run, dead, new))

    def joined(self, begin: int, end: int) -> Iterator[Run]:
        """Runs of kernels, in as few routines as can be: each takes as many as fit."""
        while begin < end:
            until = self._reach(begin, end)
            yield [kernel for run in self._runs[begin:until] if isinstance(run, list) for kernel in run]
            begin = until

    def _reach(self, begin: int, end: int) -> int:
        """Where a routine has to end that begins here: the more it takes, the more it holds."""
        fits, beyond = begin + 1, begin + 2
        while beyond <= end and self._fit(begin, beyond):
            fits, beyond = beyond, begin + 2 * (beyond - begin)
        beyond = min(beyond, end + 1)
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if self._fit(begin, middle) else (fits, middle)
        return fits

    def _fit(self, begin: int, end: int) -> bool:
        """Whether runs that are one hold no more than the program does at its peak."""
        kernels = [kernel for run in self._runs[begin:end] if isinstance(run, list) for kernel in run]
        later = [memory for number in range(begin + 1, end) for memory in self._begins.get(number, ())]
        new = {*later, *self._begins.get(begin, ())}
        inner = {memory for memory in new & self._inner if self._last[memory] < end}
        area = area_of(kernels, inner)
        for times in TIMES:
            sizes = self._bytes[times]
            before = sum(sizes[memory] for memory, first in self._first.items() if first <= begin <= self._last[memory])
            outside = before + sum(map(sizes.__getitem__, later)) - sum(map(sizes.__getitem__, inner))
            if outside + size_at(area.size, times) > max(*self._live[times], LITTLE * times):
                return False
        return True


def _is_of_aten(memory: Memory) -> bool:
    return isinstance(memory.producer, Extern)
