"""Locks that a child process finds free.

After a fork only the thread that forked goes on in the child: a lock that another one held would never be released
there. Such locks start anew, and whoever they protect may put in order what was left half done.
"""

from __future__ import annotations

import _thread
import os
import weakref
from collections.abc import Callable

_locks: set[weakref.ref[Lock]] = set()


class Lock(_thread.RLock):  # type: ignore[misc]  # it may be a base class
    """A lock that a thread may take again while it has it.

    ``recover`` is a method that is called in a child process when another thread had the lock.
    """

    def __init__(self, recover: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._recover = None if recover is None else weakref.WeakMethod(recover)
        # A set of references, as its methods are one step each: no other thread, and no fork, comes in between.
        _locks.add(weakref.ref(self, _locks.discard))

    def begin_in_child(self) -> Callable[[], None] | None:
        """Be free unless the thread that forked is who has it; gives what is to be called when that took something."""
        if self.acquire(blocking=False):
            self.release()
            return None
        self._at_fork_reinit()  # type: ignore[attr-defined]  # as the locks of Python's own modules do
        return None if self._recover is None else self._recover()


def _begin_in_child() -> None:
    locks = [lock for reference in list(_locks) if (lock := reference()) is not None]
    recoveries = [lock.begin_in_child() for lock in locks]
    for recover in recoveries:  # all locks are free by now
        if recover is not None:
            recover()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
