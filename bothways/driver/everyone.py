"""All compiled functions there are, known weakly; while a report of a whole run is made, they are kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bothways.driver.compiled import CompiledFunction

# A set of references, as its methods are one step each: no other thread comes in between.
_all: set[weakref.ref[CompiledFunction]] = set()
_kept: list[list[CompiledFunction]] = []


def register(compiled: CompiledFunction) -> None:
    """There is one more."""
    _all.add(weakref.ref(compiled, _all.discard))
    for kept in _kept:
        kept.append(compiled)


def everyone() -> list[CompiledFunction]:
    return [compiled for reference in list(_all) if (compiled := reference()) is not None]


@contextmanager
def keeping_everyone() -> Iterator[list[CompiledFunction]]:
    """The functions that are compiled from now on, which live for so long, in the order they are made."""
    kept: list[CompiledFunction] = []
    _kept.append(kept)
    try:
        yield kept
    finally:
        _kept[:] = [other for other in _kept if other is not kept]
