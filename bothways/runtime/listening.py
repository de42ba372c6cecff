"""PyTorch's warnings while a program is made. They are about stand-ins for tensors, and would name our files.

While a thread listens, warnings of that thread are counted and dropped; those of other threads, and our own, go where
the user's filters send them. No registry of warnings that were shown is touched, and what PyTorch warns about once in
a process is not used up.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch

from bothways.locks import Lock

_state = threading.local()
_lock = Lock()


class _Dropped(type):
    """Filters ask of a category whether it is a subclass of theirs: here, whether this thread listens."""

    def __subclasscheck__(cls, category: type) -> bool:
        if not _listens() or category.__module__.startswith("bothways."):
            return False
        _state.heard = heard() + 1
        _state.category = category
        return True


class Dropped(Warning, metaclass=_Dropped):
    """Every warning given while the thread listens."""


FILTER = ("ignore", None, Dropped, None, 0)


class _Listener:
    """One that listens, until its block ends. Others know it by weak references: what an interrupt did not let end
    in order is over all the same."""

    def __enter__(self) -> None:
        try:
            _state.listener = weakref.ref(self)
            with _lock:
                if _everyone.repeated is None:
                    _everyone.repeated = torch.is_warn_always_enabled()
                _everyone.listeners.add(weakref.ref(self, _everyone.listeners.discard))
                torch.set_warn_always(True)
                _put_in()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *raised: object) -> None:
        if getattr(_state, "listener", _no_listener)() is self:
            _state.listener = _no_listener  # first of all: what comes after is about tidiness
        with _lock:
            known = weakref.ref(self)
            if known not in _everyone.listeners:
                return
            _everyone.listeners.discard(known)
            if not _everyone.listeners:
                _silence_no_more()


class _Everyone:
    """The listeners of all threads."""

    def __init__(self) -> None:
        self.listeners: set[weakref.ref[_Listener]] = set()
        self.repeated: bool | None = None  # whether PyTorch repeated all warnings before; None while it does as it did
        self.lists: list[list[Any]] = []  # of filters, into which ours was put
        # Lists that are no longer the filters. Python does not hold the one that it walks.
        self.left: deque[list[Any]] = deque(maxlen=64)


_everyone = _Everyone()


def _no_listener() -> None:
    """What is left of a listener."""


def _listens() -> bool:
    return getattr(_state, "listener", _no_listener)() is not None


def heard() -> int:
    """How many warnings this thread has dropped until now."""
    return getattr(_state, "heard", 0)


def may_be_error() -> bool:
    """Whether the user's filters may make an error of a warning like the last that was dropped."""
    category = last_category()
    return any(row[0] == "error" and row[2] is not Dropped and issubclass(category, row[2]) for row in warnings.filters)


def last_category() -> type[Warning]:
    """Of the last warning that this thread has dropped; most kernels warn users."""
    category: type[Warning] = getattr(_state, "category", UserWarning)
    return category


def listening() -> AbstractContextManager[None]:
    """Drop the warnings of this thread."""
    if not _listens():
        return _Listener()
    with _lock:
        _put_in()  # another thread's ``catch_warnings`` may have brought back filters without it
    return nullcontext()


def _silence_no_more() -> None:
    """Leave everything as it was when the first began to listen."""
    if _everyone.repeated is not None:
        torch.set_warn_always(_everyone.repeated)
        _everyone.repeated = None
    _take_out()


def _put_in() -> None:
    """Let our filter be the first. Who walks the list sees a row twice at most."""
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    if FILTER not in filters:
        _everyone.lists.append(filters)
        filters.insert(0, FILTER)


def _take_out() -> None:
    """Remove our filter, and copies of it, wherever ``catch_warnings`` may have brought or kept it."""
    while threading.active_count() > 1 and FILTER in warnings.filters:
        _leave_list()
    others = [filters for filters in _everyone.lists if not any(filters is left for left in _everyone.left)]
    for filters in (warnings.filters, *others):
        with suppress(ValueError):  # there is none, or no more
            while True:
                filters.remove(FILTER)  # type: ignore[attr-defined]
    _everyone.lists.clear()


def _leave_list() -> None:
    """Make a list without our first row the filters: another thread that walks the old one would skip a row."""
    _everyone.left.append(warnings.filters)  # type: ignore[arg-type]
    at = next((at for at, row in enumerate(warnings.filters) if row is FILTER), 0)
    # No other thread comes between reading and writing, as nothing is called here.
    now = warnings.filters
    warnings.filters = [*now[:at], *now[at + 1 :]] if now[at : at + 1] == [FILTER] else now


def _begin_in_child() -> None:
    """After a fork only this thread goes on: the others listen no more."""
    listener = getattr(_state, "listener", _no_listener)()
    _everyone.listeners.intersection_update(() if listener is None else {weakref.ref(listener)})
    if listener is None:
        _silence_no_more()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
