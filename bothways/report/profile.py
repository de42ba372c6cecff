"""What a profile has measured: every kernel and every call of ATen of compiled functions, by name and by line.

``bothways.profile`` gives one. It is read while it is open or after, as a table, a page, or a trace for Chrome.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from bothways.errors import BothwaysError
from bothways.lower.host.watching import WatchedProgram, begin_looking, end_looking
from bothways.record.outcomes import KernelFacts
from bothways.report.explaining import explained_everyone
from bothways.report.html import explanation_page, write_page

# So many events are kept for the trace; the sums go on.
MOST_EVENTS = 500_000
_COMMENT = re.compile(r"# ([^#]+:\d+)\s*$")
_FRAME = re.compile(r'File "(.*)", line (\d+)')
_PLACE = re.compile(r": ([^:]+:\d+)  ")


@dataclass
class Measured:
    """All runs of one kernel, or of one call of ATen: how often, for how long, and the bytes it moved."""

    kind: str  # "kernel", "routine" for kernels that are timed together, or "ATen"
    name: str
    function: str
    graph: str
    where: tuple[str, ...]
    program: str = field(default="", repr=False)
    count: int = 0
    nanoseconds: int = 0
    moved: int = 0

    @property
    def rate(self) -> float:
        """Bytes a nanosecond, which is GB/s."""
        return self.moved / self.nanoseconds if self.nanoseconds else 0.0


class Profile:
    """Times of kernels and of ATen calls inside its ``with`` block; print it to read it."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], Measured] = {}
        self._events: list[tuple[Measured, int, int, int]] = []
        self._timed: dict[int, Any] = {}
        self.seconds = 0.0
        self._begin = 0.0

    def __enter__(self) -> Profile:
        self._begin = time.perf_counter()
        begin_looking(self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_looking(self._look)
        self.seconds += time.perf_counter() - self._begin
        self._timed.clear()

    # While it is open.

    def _look(self, program: WatchedProgram, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """What a program calls in the place of ``function``."""
        if name in program.routines:
            return self._routine(program, name, function)
        return self._aten(program, name, function) if name in program.calls else function

    def _routine(self, program: WatchedProgram, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        kernels = [kernel for kernel in program.kernels if kernel.routine == name]
        parts = [self._of_kernel(program, kernel) for kernel in kernels]
        whole = parts[0] if len(parts) == 1 else self._of_routine(program, name, kernels)
        read: Callable[[], list[int]] | None = None
        is_ready = len(parts) == 1 and program.dialect.device == "cpu"

        def run(*values: Any) -> None:
            nonlocal function, read, is_ready
            if not is_ready:  # built when it is first run: most programs of a process are not
                is_ready = True
                function, read = self._timed_routine(program, name, function)
            begin = time.perf_counter_ns()
            function(*values)
            taken = time.perf_counter_ns() - begin
            times = [] if read is None else read()
            if len(times) != len(parts):
                self._add(whole, begin, taken, sum(kernel.read + kernel.written for kernel in kernels))
                return
            for measured, kernel, own in zip(parts, kernels, times, strict=True):
                self._add(measured, begin, own, kernel.read + kernel.written)
                begin += own

        return run

    def _timed_routine(
        self, program: WatchedProgram, name: str, function: Callable[..., Any]
    ) -> tuple[Callable[..., Any], Callable[[], list[int]] | None]:
        if id(program) not in self._timed:
            try:
                make = getattr(program.dialect, "timed", None)
                by_name = {} if make is None else make(program.kernel_text, program.kinds, program.originals)
            except (BothwaysError, OSError, RuntimeError):  # no compiler, a full disk: routines are timed as wholes
                by_name = {}
            self._timed[id(program)] = program, by_name
        timed: tuple[Callable[..., Any], Callable[[], list[int]]] | None = self._timed[id(program)][1].get(name)
        return (function, None) if timed is None else timed

    def _aten(self, program: WatchedProgram, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        by_line: dict[int, Measured] = {}

        def run(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            measured = by_line.get(frame.f_lineno)
            if measured is None:
                text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
                measured = by_line[frame.f_lineno] = self._of_call(program, name, text)
            events = _Events.between((*args, *kwargs.values()))
            begin = time.perf_counter_ns()
            result = function(*args, **kwargs)
            taken = events.end() if events is not None else time.perf_counter_ns() - begin
            self._add(measured, begin, taken, _bytes_in((args, list(kwargs.values()), result)))
            return result

        return run

    def _add(self, measured: Measured, begin: int, taken: int, moved: int) -> None:
        measured.count += 1
        measured.nanoseconds += taken
        measured.moved += moved
        if len(self._events) < MOST_EVENTS:
            self._events.append((measured, begin, taken, threading.get_native_id()))

    def _sum(self, key: tuple[Any, ...], *facts: Any) -> Measured:
        if key not in self._sums:
            self._sums[key] = Measured(*facts)
        return self._sums[key]

    def _of_kernel(self, program: WatchedProgram, kernel: KernelFacts) -> Measured:
        key = program.function, program.graph, program.source, kernel.name
        where = _lines_of([kernel])
        return self._sum(key, "kernel", kernel.name, program.function, program.graph, where, program.source)

    def _of_routine(self, program: WatchedProgram, name: str, kernels: list[KernelFacts]) -> Measured:
        key = program.function, program.graph, program.source, name
        title = f"{name}: {len(kernels)} kernels" if kernels else name
        return self._sum(key, "routine", title, program.function, program.graph, _lines_of(kernels), program.source)

    def _of_call(self, program: WatchedProgram, name: str, text: str) -> Measured:
        match = _COMMENT.search(text)
        where = match[1] if match is not None else _place_of(program.origins.get(text.strip().split(" = ")[0], ""))
        key = program.function, program.graph, name, where
        places = (where,) if where else ()
        return self._sum(key, "ATen", name.removeprefix("at_").rstrip("_"), program.function, program.graph, places)

    # What people read.

    @property
    def rows(self) -> list[Measured]:
        """What ran, the longest first: each with ``kind``, ``name``, ``count``, ``nanoseconds``, ``where`` and more."""
        return sorted((row for row in self._sums.values() if row.count), key=lambda row: -row.nanoseconds)

    def table(self, limit: int = 25) -> str:
        """The longest as a table."""
        rows, total = self.rows, sum(row.nanoseconds for row in self.rows)
        lines = [
            f"{total / 1e6:.2f} ms in kernels and ATen calls of compiled functions, {self.seconds * 1e3:.2f} ms in all",
            f"{'time':>10} {'share':>6} {'calls':>7} {'each':>10} {'GB/s':>7}  {'what':<44} lines",
        ]
        for row in rows[:limit]:
            each, share = row.nanoseconds / row.count, row.nanoseconds / max(total, 1)
            what = f"{row.name} ({row.kind}, {row.graph})"
            lines.append(
                f"{_time(row.nanoseconds):>10} {share:>6.1%} {row.count:>7} {_time(each):>10} "
                f"{row.rate:>7.1f}  {what:<44} {', '.join(row.where[:3])}{', …' * (len(row.where) > 3)}"
            )
        if len(rows) > limit:
            lines.append(f"and {len(rows) - limit} more; table(limit=…), html('profile.html'), trace('trace.json')")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__  # what a prompt shows

    def html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report of all compiled functions with these times, as one HTML file; written to ``path`` if given."""
        text = explanation_page(explained_everyone(), self, "profile")
        if path is not None:
            write_page(path, text)
        return text

    def _repr_html_(self) -> str:
        return f"<pre>{self.table().replace('&', '&amp;').replace('<', '&lt;')}</pre>"

    def trace(self, path: str | os.PathLike[str]) -> Path:
        """Write a trace that ``chrome://tracing`` and Perfetto open."""
        process = os.getpid()
        events = [
            {
                "ph": "X", "cat": row.kind, "name": row.name, "pid": process, "tid": thread,
                "ts": begin / 1e3, "dur": taken / 1e3,
                "args": {"function": row.function, "graph": row.graph, "lines": list(row.where)},
            }
            for row, begin, taken, thread in self._events
        ]  # fmt: skip
        return write_page(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    # What a report asks.

    def of_kernel(self, program: str, kernel: str) -> tuple[int, int] | None:
        """How often a kernel of a program ran, and for how many nanoseconds altogether."""
        rows = (row for row in self._sums.values() if row.kind == "kernel" and row.count)
        own = [row for row in rows if (row.program, row.name) == (program, kernel)]
        return (sum(row.count for row in own), sum(row.nanoseconds for row in own)) if own else None

    def lines(self) -> Iterable[tuple[str, int, int]]:
        """Nanoseconds by a file's own name and a line; what several lines share is shared out among them."""
        for row in self.rows:
            for place in row.where:
                file, _, line = place.rpartition(":")
                yield file, int(line), row.nanoseconds // len(row.where)

    def data(self) -> list[list[Any]]:
        """The rows for the page."""
        return [
            [row.kind, row.name, row.function, row.graph, list(row.where), row.count, row.nanoseconds, row.moved]
            for row in self.rows
        ]


class _Events:
    """The time between two moments of a GPU's stream."""

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begin.record()

    @classmethod
    def between(cls, values: Iterable[Any]) -> _Events | None:
        """Begin to measure where a tensor is on a GPU."""
        return cls() if any(isinstance(value, torch.Tensor) and value.is_cuda for value in values) else None

    def end(self) -> int:
        self._end.record()
        self._end.synchronize()
        return int(self._begin.elapsed_time(self._end) * 1e6)


def _bytes_in(tree: Any) -> int:
    """The bytes of the tensors in nested arguments and results."""
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    return sum(map(_bytes_in, tree)) if isinstance(tree, (list, tuple)) else 0


def _lines_of(kernels: Iterable[KernelFacts]) -> tuple[str, ...]:
    places = (match[1] for kernel in kernels for member in kernel.members if (match := _PLACE.search(member)))
    return tuple(dict.fromkeys(places))


def _place_of(trace: str) -> str:
    match = _FRAME.search(trace)
    return f"{os.path.basename(match[1])}:{match[2]}" if match is not None else ""


def _time(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2f} ms" if nanoseconds >= 1e6 else f"{nanoseconds / 1e3:.2f} us"


