"""Whether a compiled graph is replayed as a CUDA graph, and why not: numbers and sentences for people."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Replays:
    """What became of one compiled graph on a GPU: ``name`` says which (forward, backward).

    ``calls`` were replayed, ``plain`` were not; ``reasons`` say why, the last one last. ``recordings`` are those there
    are now, with so many ``nodes`` and ``bytes`` together. ``launching`` and ``replaying`` are seconds of one call.
    """

    name: str
    recordings: int = 0
    nodes: int = 0
    bytes: int = 0
    calls: int = 0
    plain: int = 0
    launching: float = 0.0
    replaying: float = 0.0
    reasons: list[str] = field(default_factory=list)

    @property
    def saved(self) -> float:
        """The seconds of launching that all replays have saved so far, by two calls that were timed."""
        return self.calls * max(self.launching - self.replaying, 0.0) if self.replaying else 0.0

    def __str__(self) -> str:
        why = f": {'; '.join(self.reasons)}" if self.reasons else ""
        if not self.calls:
            return f"{self.name}: not replayed{why or ', no call has come three times'}"
        graphs = f"{self.recordings} CUDA graph{'s' * (self.recordings != 1)}"
        facts = [graphs, f"{self.nodes} nodes", f"{self.bytes / 1e6:.1f} MB", f"{self.calls} calls"]
        if self.saved:
            facts.append(f"{1000 * self.saved:.1f} ms of launching saved")
        others = f"; {self.plain} calls launched one by one{why}" if self.plain else why
        return f"{self.name}: replayed ({', '.join(facts)}){others}"
