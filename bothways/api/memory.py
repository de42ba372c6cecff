"""``bothways.memory()``: what recordings for GPUs hold, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass

from bothways.replay.replayed import all_replayed


@dataclass(frozen=True)
class Held:
    """What the recordings of one compiled graph hold: ``bytes`` of pools and of copies of inputs."""

    function: str
    graph: str
    recordings: int
    nodes: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.function}, {self.graph}: {self.bytes / 1e6:.1f} MB in {self.recordings} recordings"


def memory() -> list[Held]:
    """How much GPU memory CUDA graphs hold, for each compiled graph, the largest first.

    It is freed with the function, or by ``bothways.reset()``.

    >>> bothways.memory()
    []
    """
    held = []
    for one in all_replayed():
        recordings = one.recordings
        if recordings:
            nodes, size = sum(item.recorded.nodes for item in recordings), sum(item.bytes for item in recordings)
            held.append(Held(one.function, one.replays.name, len(recordings), nodes, size))
    return sorted(held, key=lambda one: -one.bytes)
