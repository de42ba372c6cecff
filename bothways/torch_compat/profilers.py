"""When PyTorch's profilers begin and end to record: private functions of theirs that are told here."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch.autograd.profiler as profiler

_STARTS, _STOPS = "_run_on_profiler_start", "_run_on_profiler_stop"


def is_recording() -> bool:
    """Whether a profiler of PyTorch's records now."""
    return bool(getattr(profiler, "_is_profiler_enabled", False))


def on_profilers(started: Callable[[], None], stopped: Callable[[], None]) -> bool:
    """Have functions called when a profiler begins and ends to record; False where there is no way to know."""
    if not all(callable(getattr(profiler, name, None)) for name in (_STARTS, _STOPS)):
        return False
    for name, told in ((_STARTS, started), (_STOPS, stopped)):
        setattr(profiler, name, _telling(getattr(profiler, name), told))
    return True


def _telling(function: Callable[..., object], told: Callable[[], None]) -> Callable[..., object]:
    @functools.wraps(function)
    def tell(*args: object, **kwargs: object) -> object:
        result = function(*args, **kwargs)
        told()
        return result

    return tell
