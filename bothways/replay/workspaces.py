"""The memory that a library works in while it multiplies matrices, for what is recorded.

PyTorch keeps such memory for each thread and stream, 32 MB of it on today's GPUs, and a recorded launch holds its
address. Recordings of a lane run one after the other, so that one piece does for all of them: it lies in the pool that
they share, and is free in there once a recording is made. Outside of it another tensor might get it: PyTorch itself
lets go of it when a graph that was recorded on the same stream is gone, or, up to 2.11, never: there it is taken out of
PyTorch's table, for our stream alone. Those of other streams may be in graphs of the user's.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.building.build import CSource, library_of
from bothways.building.cuda_driver import NoDriver, new_stream
from bothways.errors import BothwaysError
from bothways.replay.workspace_source import DELETE, NEXT, TAKE_OUT, TEXT

_woken = threading.local()


def stream_aside(device: torch.device) -> tuple[torch.cuda.Stream, bool]:
    """A stream to record on, and whether it is ours alone: those that PyTorch makes come round again."""
    try:
        address = new_stream(device.index)
    except (NoDriver, RuntimeError):
        return torch.cuda.Stream(device), False
    return torch.cuda.ExternalStream(address, device), True


def makes_products(run: Callable[..., Any]) -> bool:
    """Whether a compiled graph calls a library that multiplies matrices. Where that is not seen, what the library works
    in is memory of the recording's own."""
    code, names = getattr(run, "__code__", None), getattr(run, "__globals__", {})
    return code is not None and any(_is_product(names.get(name)) for name in code.co_names)


def _is_product(value: Any) -> bool:
    overload = value if torch_compat.is_plain_overload(value) else torch_compat.overload_of(value)
    return (ops.named(getattr(value, "__name__", "")) if overload is None else ops.of(overload)).is_product


def wake_up(device: torch.device) -> None:
    """Let the libraries make what they have for a thread, which they cannot while something is recorded."""
    known: set[int] = _woken.__dict__.setdefault("devices", set())
    if device.index not in known:
        multiply(device)
        known.add(device.index)


def multiply(device: torch.device) -> None:
    """Have the libraries take the memory that they work in."""
    with torch.inference_mode(False), torch.no_grad():
        ones = torch.ones(16, 16, device=device)
        for matrix in (ones, ones.bfloat16()):
            torch.addmm(matrix[0], matrix, matrix)
            torch.mm(matrix, matrix)


def let_go(stream: torch.cuda.Stream) -> None:
    """Give back what libraries keep for a stream: to the pool it came from."""
    if torch_compat.forget_workspaces(stream.cuda_stream):
        return
    tables = torch_compat.workspace_tables()
    take_out = _taking_out() if tables else None
    if take_out is not None:
        for table in tables:
            take_out(table, stream.cuda_stream)


@functools.cache
def _taking_out() -> Callable[[int, int], int] | None:
    """Takes the entries of a stream out of a table, and tells how many they were; None where no C can be built."""
    try:
        library = library_of(CSource((), (TEXT,)))
        trees = ctypes.CDLL("libstdc++.so.6")
        functions = [ctypes.cast(trees[name], ctypes.c_void_p) for name in (NEXT, TAKE_OUT, DELETE)]
    except (BothwaysError, OSError, AttributeError):
        return None
    forget = library.forget_stream
    forget.argtypes, forget.restype = [ctypes.c_void_p] * 5, ctypes.c_int
    return lambda table, stream: forget(table, stream, *functions)
