"""Names in the traces of ``torch.profiler``: while it records, our kernels and graphs run in ranges that are called
after the user's functions and lines. When nothing records, there are no ranges.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from torch.profiler import record_function

from bothways.lower.host.watching import WatchedProgram, begin_looking, end_looking
from bothways.torch_compat.profilers import is_recording, on_profilers

_PLACE = re.compile(r": ([^:]+:\d+)  ")
MOST_LINES = 3


@functools.cache
def tell_profilers() -> bool:
    """Begin to know when PyTorch's profilers record; once in a process."""
    known = on_profilers(_started, _stopped)
    if known and is_recording():
        _started()
    return known


def _started() -> None:
    end_looking(_ranged)
    begin_looking(_ranged)


def _stopped() -> None:
    end_looking(_ranged)


def _ranged(program: WatchedProgram, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A routine of kernels in a range; ATen's calls have names of their own."""
    if name == program.run_name:
        title = f"bothways {program.function or 'graph'} ({program.graph})"
    elif name in program.routines:
        title = routine_title(program, name)
    else:
        return function

    def run(*values: Any) -> Any:
        with record_function(title):
            return function(*values)

    return run


def routine_title(program: WatchedProgram, name: str) -> str:
    """``bothways step (forward) layer_norm_relu, model.py:8``."""
    kernels = [kernel for kernel in program.kernels if kernel.routine == name]
    names = dict.fromkeys(re.sub(r"^kernel_\d+_", "", kernel.name) for kernel in kernels)
    places = dict.fromkeys(match[1] for kernel in kernels for one in kernel.members if (match := _PLACE.search(one)))
    what = " ".join([*names][:MOST_LINES]) or name
    lines = ", ".join([*places][:MOST_LINES]) + ", …" * (len(places) > MOST_LINES)
    return f"bothways {program.function or 'graph'} ({program.graph}) {what}{f', {lines}' if lines else ''}"
