"""The line on a terminal that says what a long compilation is at: ``bothways: step: capture 3.1 s, kernels 12/40``.

It is there from two seconds on, is written to stderr, and goes when the compilation ends. Where stderr is no terminal,
or ``BOTHWAYS_PROGRESS=0``, there is nothing of it, not even the thread that writes it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

VARIABLE = "BOTHWAYS_PROGRESS"
AFTER, EVERY = 2.0, 0.2  # seconds until the line is there, and between two of its texts
# What people call a stage while it is under way.
WORDS = {"build": "kernels"}


class ProgressLine:
    """What is compiled now, and for how long each stage has been at it."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()
        self._seconds: dict[str, float] = {}
        self._stages: list[tuple[str, float]] = []
        self._kernels = 0
        self._share: Callable[[], float] | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._write, name="bothways-progress", daemon=True).start()

    @property
    def is_own(self) -> bool:
        """Whether it is this thread that compiles."""
        return self._thread == threading.get_ident()

    def begin(self, stage: str) -> None:
        self._stages.append((stage, time.monotonic()))
        self._seconds.setdefault(stage, 0.0)

    def end(self) -> None:
        stage, begin = self._stages.pop()
        self._seconds[stage] += time.monotonic() - begin

    def build(self, kernels: int, share: Callable[[], float]) -> None:
        """So many kernels are built now; ``share`` tells how much of that is done."""
        self._kernels, self._share = kernels, share

    def text(self) -> str:
        """The line."""
        stages = list(self._stages)
        now, parts = time.monotonic(), []
        for stage, taken in list(self._seconds.items()):
            taken += sum(now - begin for running, begin in stages if running == stage)
            parts.append(f"{WORDS.get(stage, stage)} {taken:.1f} s")
        if self._share is not None and any(stage == "build" for stage, _ in stages):
            parts[-1] = f"kernels {int(self._kernels * self._share())}/{self._kernels}"
        return f"bothways: {self._name}: {', '.join(parts)}"

    def close(self) -> None:
        self._ended.set()

    def _write(self) -> None:
        if self._ended.wait(AFTER):
            return
        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        except (OSError, ValueError):
            width = 80
        try:
            while True:
                sys.stderr.write(f"\r\x1b[K{self.text()[: width - 1]}")
                sys.stderr.flush()
                if self._ended.wait(EVERY):
                    break
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        except (OSError, ValueError):  # the terminal is gone
            return


_line: ProgressLine | None = None


def is_wanted() -> bool:
    """Whether the user may look: a terminal, and the variable does not say no."""
    try:
        return os.environ.get(VARIABLE, "1") != "0" and sys.stderr is not None and sys.stderr.isatty()
    except (ValueError, AttributeError, TypeError):  # it is closed, is no file at all, or builtins are patched
        return False


@contextmanager
def compiling(name: str) -> Iterator[None]:
    """Show what happens inside, unless it is shown already as a part of something."""
    global _line
    if _line is not None or not is_wanted():
        yield
        return
    _line = line = ProgressLine(name)
    try:
        yield
    finally:
        _line = None
        line.close()


def current_line() -> ProgressLine | None:
    """The line of what this thread compiles, where there is one."""
    return _line if _line is not None and _line.is_own else None
