"""Routines on a GPU that launch their kernels one by one, with an event after each: for profiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bothways.building.cuda_build import Loaded
from bothways.calls.launching import one_by_one
from bothways.lower.host.dialect import Timed


def timed_launches(kinds: Mapping[str, str], functions: Mapping[str, Any]) -> dict[str, Timed]:
    """The routines by name. What a builtin function of ours launches is what it keeps alive."""
    timed: dict[str, Timed] = {}
    for name, letters in kinds.items():
        loaded = getattr(functions.get(name), "__module__", None)
        if isinstance(loaded, Loaded):
            timed[name] = _timed(loaded, name, letters)
    return timed


def _timed(loaded: Loaded, name: str, kinds: str) -> Timed:
    events: list[torch.cuda.Event] = []

    def mark() -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)

    run: Callable[..., None] = one_by_one(loaded, name, kinds, mark)

    def read() -> list[int]:
        if events:
            events[-1].synchronize()
        taken = [int(before.elapsed_time(after) * 1e6) for before, after in itertools.pairwise(events)]
        events.clear()
        return taken

    return run, read
