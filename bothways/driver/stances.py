"""What compiled functions do with their calls, for the whole process: the usual, nothing new, or nothing at all.

A change of stance is told to every compiled function at once, so that a hit never has to ask.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from bothways.locks import Lock

# Stance -> what it means.
STANCES: dict[str, str] = {
    "default": "compile as ever",
    "force_eager": "run everything as plain Python",
    "eager_on_recompile": "use the programs there are; what would have to be compiled runs as plain Python",
    "fail_on_recompile": "use the programs there are; what would have to be compiled is an error",
}


@dataclass(frozen=True, eq=False)
class ForcedBackend:
    """A backend that a stance puts in the place of each function's own."""

    backend: Callable[..., Any]


@dataclass(frozen=True)
class Stance:
    """One of ``STANCES``; with a backend, functions are compiled with that one instead of their own."""

    name: str = "default"
    backend: ForcedBackend | None = None


class _Current:
    """The one stance of the process."""

    def __init__(self) -> None:
        self.stance = Stance()
        self.lock = Lock(self.tell)
        self.listeners: list[Callable[[Stance], None]] = []

    def tell(self) -> None:
        """Have all listeners take the stance; also those that come after one where that was interrupted."""
        try:
            for listener in self.listeners:
                listener(self.stance)
        except BaseException:
            for listener in self.listeners:
                listener(self.stance)
            raise


_current = _Current()


def current() -> Stance:
    return _current.stance


def change(stance: Stance) -> Stance:
    """Take a stance; gives the one before."""
    with _current.lock:
        before, _current.stance = _current.stance, stance
        if stance != before:
            _current.tell()
    return before


def unchanged() -> AbstractContextManager[Any]:
    """Inside of it no other thread changes the stance: who begins to listen misses no change."""
    return _current.lock


def on_change(listener: Callable[[Stance], None]) -> None:
    """Have a function called with every new stance."""
    _current.listeners.append(listener)
