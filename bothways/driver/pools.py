"""What compiled functions of one code share: their programs, what was learned about the code, and its limits.

Ten layers of one class, compiled one by one, are one piece of code, so what was captured for the first serves the
others: a function looks here for a program that fits a call before it captures. Programs belong to the functions that
use them; the pool must not keep them alive.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from bothways.backends.aot import Lowering
from bothways.config import config
from bothways.driver.breaks import BreakCounts
from bothways.driver.callees import Callees
from bothways.driver.failing import describe_check, failing_check, fits
from bothways.driver.limits import Budget
from bothways.driver.lines_left import LinesLeft
from bothways.errors import Break
from bothways.locks import Lock
from bothways.pipeline import Options
from bothways.record.compilation import Compilation
from bothways.record.history import History
from bothways.runtime.dispatcher import Dispatcher
from bothways.runtime.program import Program
from bothways.runtime.resume import ResumePoint
from bothways.runtime.size_history import SizeHistory
from bothways.runtime.stamps import Body

Make = Callable[[types.FunctionType, Options, History], types.FunctionType]

# Of the configuration, what a program does not depend on: when there is one, who is told, and what is kept on disk.
BESIDE_PROGRAMS = frozenset(
    "recompile_limit error_on_recompile wasted_capture_ratio suppress_errors kernel_cache kernel_cache_megabytes "
    "compiler_seconds logs".split()
)
BOUND = "a program of the same code is for another function alone"


class Serials:
    """Numbers that names of programs end in: no function has the same one twice."""

    def __init__(self) -> None:
        self.last = 0
        self._lock = Lock()

    def next(self) -> int:
        with self._lock:
            self.last += 1
            return self.last

    def go_past(self, number: int) -> None:
        """Give none up to this one any more."""
        with self._lock:
            self.last = max(self.last, number)


class Pool:
    """What the compiled functions of one code have in common; it lives as long as one of them."""

    def __init__(self, options: Options, make: Make, history: History | None = None, kept: Any = None) -> None:
        """``make`` compiles a part of the function; ``kept`` is what the pool is known by."""
        self.options, self._make, self._kept = options, make, kept
        self.lock = Lock()
        self.history = history or History()
        self.sizes = SizeHistory(options.dynamic)
        self.serials, self.is_new = Serials(), True
        self.breaks = BreakCounts()
        self.budget = Budget()
        self.lines_left = LinesLeft(self.history.left)
        self.in_vain: Break | None = None  # why the last capture came to nothing
        self.gave_up = ""  # for reports: why the last call was plain Python that was not captured
        self.gave_up_once = False  # whether that was for this one call: it is past when there is a program
        self.stopped: str | None = None  # why nothing more is captured
        self.continuations: dict[tuple[types.CodeType, ResumePoint, int | None], types.FunctionType] = {}
        instead = options.backend.instead if isinstance(options.backend, Lowering) else {}
        self.callees = Callees(weakref.WeakMethod(self.part), instead)
        self._made: list[Compilation] = []

    def part(self, function: types.FunctionType) -> types.FunctionType:
        """The compiled function of what goes on after a break, or is called there."""
        return self._make(function, self.options, self.history)

    def give_up(self, why: str, once: bool = False) -> None:
        """Say for reports why the last call was not captured; ``once`` where the next one is."""
        self.gave_up, self.gave_up_once = why, once

    # Programs.

    def add(self, record: Compilation) -> None:
        """A compilation has given a program that calls may take."""
        self._made = [*self._in_use(), record]
        if self.gave_up_once:
            self.give_up("")

    @property
    def programs(self) -> list[Program]:
        """The programs that calls of any of the functions may take."""
        return [program for record in self._in_use() if (program := record.program) is not None]

    def _in_use(self) -> list[Compilation]:
        return [record for record in self._made if record.program is not None]

    def _foreign(
        self, dispatcher: Dispatcher, function: types.FunctionType
    ) -> Iterator[tuple[Compilation, Program | None]]:
        """The programs that others have and this one has not, as they would be for it; None where one cannot be."""
        settings = settings_now()
        for record in reversed(self._made):
            program = record.program
            if program is not None and record.settings == settings and not record.is_held_by(dispatcher):
                yield record, program.rebound(function)

    def take(self, dispatcher: Dispatcher, body: Body, values: tuple[Any, ...]) -> Program | None:
        """A program of another function that takes these values, which the dispatcher has from now on."""
        generation = dispatcher.generation
        for record, program in self._foreign(dispatcher, body.function):
            if program is None or not fits(program, dispatcher, values):
                continue
            if not body.holds() or not dispatcher.add(program, generation):  # another thread has changed everything
                return None
            record.gave(program, dispatcher)
            return program
        return None

    def why_not(
        self, dispatcher: Dispatcher, function: types.FunctionType, values: tuple[Any, ...]
    ) -> Iterator[tuple[bool, str]]:
        """Which guard of each of them does not hold; first whether that program has a body."""
        for _, program in self._foreign(dispatcher, function):
            check = None if program is None else failing_check(program, dispatcher, values)
            yield program is None or bool(program.body), BOUND if check is None else describe_check(check)

    def stop(self, dispatcher: Dispatcher, function: types.FunctionType, reason: str) -> None:
        """Nothing more of this code is captured; the function is given all that there is, as it will not ask again."""
        self.stopped = self.stopped or reason
        for record, program in list(self._foreign(dispatcher, function)):
            if program is not None and dispatcher.add(program):
                record.gave(program, dispatcher)
        dispatcher.stop_capturing(reason)


def settings_now() -> dict[str, Any]:
    """The part of the configuration that programs depend on."""
    return {name: value for name, value in config.as_dict().items() if name not in BESIDE_PROGRAMS}


_pools: weakref.WeakValueDictionary[tuple[Any, ...], Pool] = weakref.WeakValueDictionary()
_lock = Lock()


def shared_pool(function: types.FunctionType, options: Options, kind: Any, make: Make) -> Pool:
    """The pool of functions with this code.

    ``kind`` tells apart what has one code for everything: how modules are called, by their class.
    """
    has_defaults = bool(function.__kwdefaults__)
    # Code that is equal may be from other files, and a backend may be anything that can be called.
    kept = (function.__code__, function.__globals__, options.backend, kind)
    ways = (
        options.backend_name, options.fullgraph, options.dynamic, options.forced, options.of_hooks, options.cuda_graphs,
    )  # fmt: skip
    key = (*map(id, kept), *ways, has_defaults)
    with _lock:
        pool = _pools.get(key)
        if pool is None:
            pool = _pools[key] = Pool(options, make, kept=kept)
        return pool


def forget_pools() -> None:
    """A function that joins a pool from now on joins a new one."""
    with _lock:
        _pools.clear()
