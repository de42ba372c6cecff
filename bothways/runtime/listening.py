"""PyTorch's warnings while a program is made. They are about stand-ins for tensors, and would name our files.

While a thread listens, warnings of that thread are counted and dropped; those of other threads, and our own, go where
the user's filters send them. No registry of warnings that were shown is touched, and what PyTorch warns about once in
a process is not used up.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bothways.locks import Lock

_state = threading.local()
_lock = Lock()
_listening: list[bool] = []  # for each that listens: whether PyTorch repeated all warnings before


class _Dropped(type):
    """Filters ask of a category whether it is a subclass of theirs: here, whether this thread listens."""

    def __subclasscheck__(cls, category: type) -> bool:
        if not getattr(_state, "depth", 0) or category.__module__.startswith("bothways."):
            return False
        _state.heard += 1
        _state.category = category
        return True


class Dropped(Warning, metaclass=_Dropped):
    """Every warning given while the thread listens."""


FILTER = ("ignore", None, Dropped, None, 0)


def heard() -> int:
    """How many warnings this thread has dropped until now."""
    return getattr(_state, "heard", 0)


def may_be_error() -> bool:
    """Whether the user's filters may make an error of a warning like the last that was dropped."""
    category = getattr(_state, "category", UserWarning)
    return any(row[0] == "error" and row[2] is not Dropped and issubclass(category, row[2]) for row in warnings.filters)


@contextmanager
def listening() -> Iterator[None]:
    """Drop the warnings of this thread."""
    if getattr(_state, "depth", 0):
        yield
        return
    filters = warnings.filters
    _state.depth, _state.heard = 1, heard()
    filters.insert(0, FILTER)  # type: ignore[attr-defined]
    with _lock:
        _listening.append(_listening[0] if _listening else torch.is_warn_always_enabled())
        torch.set_warn_always(True)
    try:
        yield
    finally:
        with _lock:
            before = _listening.pop()
            if not _listening:
                torch.set_warn_always(before)
        if FILTER in filters:
            filters.remove(FILTER)  # type: ignore[attr-defined]
        _state.depth = 0


def _begin_in_child() -> None:
    """After a fork only this thread goes on: the others listen no more."""
    listens = bool(getattr(_state, "depth", 0))
    if _listening and not listens:
        torch.set_warn_always(_listening[0])
    del _listening[int(listens) :]
    while warnings.filters.count(FILTER) > listens:
        warnings.filters.remove(FILTER)  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
