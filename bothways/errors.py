"""Every exception bothways raises, and the structure a break carries.

A ``Break`` says what stopped a capture, where in the user's source, and what can be done about it; its
text is made here and nowhere else.
"""

from __future__ import annotations

import difflib
import functools
import linecache
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from bothways.hints import HINTS, hint_for
from bothways.source_text import printable

__all__ = [
    "HINTS", "OF_FIRST_CALLS", "ONCE", "OWN_CODE", "UNKNOWN_POSITION", "BackendFailed", "BothwaysError", "Break",
    "BuildFailed", "InternalError", "InvalidBackend", "InvalidOption", "InvalidTarget", "KernelWarning",
    "NoCompiler", "Position", "RecompileError", "RecompileLimitWarning", "TracedWarning", "Unsupported",
    "level_of_user", "warn_once",
]  # fmt: skip


@dataclass(frozen=True)
class Position:
    """One place in the user's source: a file, a line, and the function it stands in."""

    filename: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The source line itself, or an empty string when no source can be found."""
        try:
            return linecache.getline(self.filename, self.line).strip()
        except ValueError:  # no file can have this name
            return ""

    def __str__(self) -> str:
        return f"{printable(self.filename)}:{self.line} in {printable(self.function)}"


UNKNOWN_POSITION = Position("<unknown>", 0, "<unknown>")

# Where the frames of bothways are from: its files, and what it generates.
OWN_CODE = (os.path.dirname(__file__) + os.sep, "<bothways ")

# What people call a backend elsewhere -> ours that does that.
INSTEAD_OF = {"inductor": "native"}

# Breaks that are of one call and not of the next: a program for it would run once, so that call is plain Python.
ONCE = frozenset({"lazy_state"})
# The same for people: what makes its state, or finds out its sizes, when it is called first.
OF_FIRST_CALLS = ONCE | {"lazy_module"}


@dataclass(frozen=True)
class Break:
    """Where a capture stopped: a reason code, what happened, the source position, and what to do."""

    code: str
    reason: str
    where: Position = UNKNOWN_POSITION
    stack: tuple[Position, ...] = field(default=())

    @property
    def hint(self) -> str:
        """What can be done about it."""
        return hint_for(self.code, self.reason)

    @property
    def is_once(self) -> bool:
        """Whether it is of one call and not of the next, which is captured."""
        return self.code in ONCE

    @property
    def of_first_call(self) -> bool:
        """Whether only a first call has it, and nothing has to be done."""
        return self.code in OF_FIRST_CALLS

    @property
    def places(self) -> tuple[Position, ...]:
        """Where it happened, and from where that was called; without what stands in bothways for code in C."""
        places = tuple(at for at in (self.where, *self.stack) if not at.filename.startswith(OWN_CODE))
        return places or (self.where,)

    def __str__(self) -> str:
        where, *stack = self.places
        lines = [f"[{self.code}] {self.reason}", f"  at {where}"]
        if where.text:
            lines.append(f"    {where.text}")
        lines += [f"  called from {position}" for position in stack]
        lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class BothwaysError(Exception):
    """The base class of all errors of bothways."""


class Unsupported(BothwaysError):
    """Capture met something it cannot do; ``break_`` says what, where and what to do."""

    def __init__(self, break_: Break) -> None:
        super().__init__(str(break_))
        self.break_ = break_

    def __reduce__(self) -> tuple[type[Unsupported], tuple[Break]]:
        return type(self), (self.break_,)


class InvalidBackend(BothwaysError, ValueError):
    """A backend's name is not registered, or a backend is not callable."""

    def __init__(self, name: object, valid: Sequence[str]) -> None:
        close = difflib.get_close_matches(INSTEAD_OF.get(str(name), str(name)), valid, n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        super().__init__(f"no backend {name!r}{meant}; the valid names are {', '.join(valid)} (or pass a callable)")
        self.name, self.valid = name, tuple(valid)

    def __reduce__(self) -> tuple[type[InvalidBackend], tuple[object, tuple[str, ...]]]:
        return type(self), (self.name, self.valid)


class InvalidOption(BothwaysError, ValueError):
    """An option of a public function has a value that it does not take."""


class InvalidTarget(BothwaysError, TypeError):
    """A public function was given something that it cannot work with, as ``compile`` a class."""


class BackendFailed(BothwaysError, RuntimeError):
    """A backend raised, or returned something that cannot be called."""


class NoCompiler(BothwaysError, RuntimeError):
    """There is no working C compiler, so there are no kernels."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}\n  hint: install gcc or clang (Debian: apt install gcc libc6-dev), or set CC to a compiler; "
            'backend="aot_eager" works without one'
        )
        self.problem = problem

    def __reduce__(self) -> tuple[type[NoCompiler], tuple[str]]:
        return type(self), (self.problem,)


class BuildFailed(BothwaysError, RuntimeError):
    """The C compiler works, but rejected a generated source; the message has its output."""


class RecompileError(BothwaysError, RuntimeError):
    """A guard failed while ``config.error_on_recompile`` was set."""


class InternalError(BothwaysError, RuntimeError):
    """bothways itself failed: a bug, please report it."""


class TracedWarning(UserWarning):
    """A compiled function ran as plain Python, because it was called while another tracer was active."""


class RecompileLimitWarning(UserWarning):
    """A function will not be compiled any more: it has ``config.recompile_limit`` programs, or captures that came to
    nothing took longer than ``config.wasted_capture_ratio`` allows."""


class KernelWarning(UserWarning):
    """Kernels cannot be built, or not be kept on disk; what runs instead is right, but slower."""


def level_of_user() -> int:
    """The ``stacklevel`` with which a warning of the caller's names the user's line, not one that leads to it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_CODE):
        level, frame = level + 1, frame.f_back
    return level


@functools.cache
def warn_once(message: str) -> None:
    """Give a KernelWarning, the first time for each message."""
    warnings.warn(message, KernelWarning, stacklevel=level_of_user())
