"""Keeps the code that a backend generated with the function it was generated for, so that people can read it.

A backend runs when a function is compiled, and again when a backward or a part of a graph is compiled later; who is
compiled is remembered in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Generated:
    """What was generated for one graph: ``name`` says which, ``texts`` are programs by language."""

    name: str
    texts: dict[str, str]


_current: ContextVar[list[Generated] | None] = ContextVar("generated", default=None)


def current() -> list[Generated] | None:
    """Where code that is generated now is kept."""
    return _current.get()


@contextmanager
def kept_in(place: list[Generated] | None) -> Iterator[None]:
    """Keep what is generated inside in ``place``."""
    token = _current.set(place)
    try:
        yield
    finally:
        _current.reset(token)


def keep(generated: Generated) -> None:
    place = _current.get()
    if place is not None:
        place.append(generated)
