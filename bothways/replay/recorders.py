"""Who records and replays: for NVIDIA's GPUs their driver; tests bring one along that needs no GPU.

A recorder is the only one who knows how launches are recorded. A lane is what replays go by one after the other: a
stream of a device, with the memory that its recordings share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from bothways.locks import Lock
from bothways.replay.numbers import Expressions


class Lane:
    """A stream that recordings are replayed on. ``busy``: one of them has results that are not copied yet."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.lock = Lock()
        self.busy = False


class Recorded(Protocol):
    """A function that was recorded with certain inputs. ``outputs`` are what it gave: its inputs, or memory that every
    replay writes to."""

    outputs: Sequence[Any]
    nodes: int
    bytes: int

    def replay(self) -> None:
        """Do it all again, on the current stream."""

    def learn(
        self, expressions: Expressions, numbers: Sequence[float], again: Callable[[Sequence[float]], Any]
    ) -> str:
        """Find out where numbers are, and what is computed of them, by recording again with others; why that cannot be
        told otherwise."""

    def set_numbers(self, numbers: Sequence[float]) -> None:
        """Have the next replay compute with these numbers; ``learn`` has found out how."""

    def done(self, lent: Sequence[torch.Tensor]) -> None:
        """What a replay has given was copied, but for what is lent."""


class GraphRecorder(Protocol):
    """What records on one type of device. ``runs_python``: a replay runs the function again, Python and all."""

    runs_python: bool

    def why_not_now(self) -> str:
        """Why nothing may be recorded or replayed at this moment; nothing if it may."""

    def lane(self, device: torch.device) -> Lane:
        """The lane of the current stream."""

    def record(self, run: Callable[..., Any], values: list[Any], takes_list: bool, lane: Lane, lends: bool) -> Recorded:
        """Record a function. Nothing that it writes has changed, and no random number is drawn, when this returns or
        raises. With ``lends`` no other recording writes to where its outputs are."""


_recorders: dict[str, GraphRecorder] = {}


def recorder_of(device: torch.device) -> GraphRecorder | None:
    """What records on a device; None where nothing does."""
    recorder = _recorders.get(device.type)
    if recorder is None and device.type == "cuda" and torch.version.cuda is not None:
        from bothways.replay.cuda_graphs import CudaGraphs

        recorder = _recorders.setdefault("cuda", CudaGraphs())
    return recorder


@contextmanager
def recording_with(kind: str, recorder: GraphRecorder) -> Iterator[None]:
    """Have functions that are compiled inside recorded by another recorder, on one type of device."""
    before = _recorders.get(kind)
    _recorders[kind] = recorder
    try:
        yield
    finally:
        _recorders.pop(kind)
        if before is not None:
            _recorders[kind] = before
