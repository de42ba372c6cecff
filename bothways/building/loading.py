"""Loaded shared libraries, which are unloaded when they cannot be called any more."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from typing import Any

# The loader has a lock of its own, which a child would wait for if another thread had it at the fork: so no thread
# forks while a library of ours is loaded or unloaded.
_loading = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


class Library(ctypes.CDLL):
    """A loaded library. It stays as long as something refers to it: a program, for one, in each of its entries.

    While a kernel runs, its caller holds the entry. The threads of a parallel region have left it when the region ends.
    """

    def __init__(self, path: str, *, unloads: bool = True) -> None:
        with _loading:
            super().__init__(path)
        if unloads:
            # What is loaded when the process ends goes with it.
            weakref.finalize(self, _unload, self._handle).atexit = False

    def address(self, name: str) -> int:
        """Where a function is. A function of ctypes would hold the library, and itself, until garbage is collected."""
        return ctypes.addressof(ctypes.c_char.in_dll(self, name))

    def __getattr__(self, name: str) -> Any:
        """A function. It is not kept here, as ctypes would: it holds the library."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


def _unload(handle: int) -> None:
    with _loading:
        _dlclose()(handle)


@functools.cache
def _dlclose() -> Any:
    function = ctypes.CDLL(None)["dlclose"]
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    return function
