"""Loaded shared libraries, which are unloaded when nobody can call them any more."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any


class Library(ctypes.CDLL):
    """A loaded library. It stays as long as it, or one of its functions, is referred to.

    A function of ctypes holds the library it is from, and what Python calls holds such a function: while a kernel
    runs, its caller holds it. The threads of a parallel region have left it when the region ends.
    """

    def __init__(self, path: str, *, unloads: bool = True) -> None:
        super().__init__(path)
        if unloads:
            # What is loaded when the process ends goes with it.
            weakref.finalize(self, _unload, self._handle).atexit = False

    def __getattr__(self, name: str) -> Any:
        """A function. It is not kept here, as ctypes would: it holds the library."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


def _unload(handle: int) -> None:
    _dlclose()(handle)


@functools.cache
def _dlclose() -> Any:
    function = ctypes.CDLL(None)["dlclose"]
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    return function
