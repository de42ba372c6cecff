"""What happened to one compiled function so far, with all that goes on after its breaks or is called there."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Break, Position
from bothways.record.outcomes import Generated, Outcome
from bothways.record.standing import Standing, told


@dataclass
class History:
    """What happened to one compiled function so far."""

    recompilations: list[str] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    generated: list[Generated] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)  # of the graphs
    parts: list[weakref.ref[Any]] = field(default_factory=list)
    rests: list[Standing] = field(default_factory=list)  # what goes on after a break and is not compiled
    root: weakref.ref[Any] | None = field(default=None, repr=False)
    captures: int = 0
    # Where operations fail while their shapes are worked out, and plain Python comes through.
    disbelieved: set[Position] = field(default_factory=set)

    @property
    def standings(self) -> list[Standing]:
        """For people: which functions are compiled, which are plain Python, and why."""
        root = None if self.root is None else self.root()
        return self.rests if root is None else root.standings

    @property
    def plain_from_now_on(self) -> bool:
        """Whether nothing more is compiled of the function, of the rest of it after a break, or of a callee there."""
        return any(standing.for_good for standing in self.standings)

    def __str__(self) -> str:
        return told(self.outcomes, self.standings)
