"""What became of each captured graph: fused kernels, ATen operations, or what was captured, and why.

Facts for people: numbers and sentences, no tensor and no graph. Whoever decides how a graph runs says it with
``generated.note``; here is only how that reads.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field


class Way(enum.Enum):
    """How operations run. The values are what people read."""

    KERNELS = "compiled"
    ATEN = "as ATen operations"
    CAPTURED = "as captured"


@dataclass(frozen=True)
class Generated:
    """What was generated for one graph: ``name`` says which, ``texts`` are programs by language."""

    name: str
    texts: dict[str, str]


@dataclass(frozen=True)
class Piece:
    """How a graph, or one piece of it, runs: ``name`` says which (forward, backward, a part), ``reason`` why so."""

    name: str
    way: Way
    operations: int
    in_kernels: int = 0
    kernels: int = 0
    reason: str = ""

    def __str__(self) -> str:
        how = shares([self]) if self.way is Way.KERNELS else f"{counted(self.operations, 'operation')} {self.way.value}"
        return f"{self.name}: {how}{f' ({self.reason})' if self.reason else ''}"


@dataclass
class Outcome:
    """How one captured graph runs. Pieces that are compiled when they first run, as backwards are, come later."""

    function: str
    backend: str
    operations: int = 0
    pieces: list[Piece] = field(default_factory=list)
    texts: list[Generated] = field(default_factory=list, repr=False)  # of all graphs of one function

    @property
    def way(self) -> Way | None:
        """The best of what its pieces do; None when a backend of somebody's own has not said."""
        return next((way for way in Way if any(piece.way is way for piece in self.pieces)), None)

    @property
    def reasons(self) -> list[str]:
        """Why not all of it is compiled."""
        return list(dict.fromkeys(piece.reason for piece in self.pieces if piece.reason))

    def __str__(self) -> str:
        if self.way is None:
            return f"{counted(self.operations, 'operation')}, compiled by the backend {self.backend}"
        return "; ".join(map(str, self.pieces))


def summary(outcomes: Sequence[Outcome]) -> str:
    """All graphs of a function in one line: ``3 graphs: 2 compiled (14 of 16 operations in 3 kernels), 1 …``."""
    if not outcomes:
        return "no graphs"
    parts = []
    for way in (*Way, None):
        found = [outcome for outcome in outcomes if outcome.way is way]
        if not found:
            continue
        if way is Way.KERNELS:
            details = [shares([piece for outcome in found for piece in outcome.pieces])]
        elif way is None:
            details = list(dict.fromkeys(f"by the backend {outcome.backend}" for outcome in found))
        else:
            details = []
        reasons = dict.fromkeys(reason for outcome in found for reason in outcome.reasons)
        said = "; ".join([*details, *reasons])
        parts.append(f"{len(found)} {'compiled' if way is None else way.value}{f' ({said})' if said else ''}")
    return f"{counted(len(outcomes), 'graph')}: {', '.join(parts)}"


def shares(pieces: Sequence[Piece]) -> str:
    """``14 of 16 operations in 3 kernels``."""
    inside, operations, kernels = (
        sum(getattr(piece, name) for piece in pieces) for name in ("in_kernels", "operations", "kernels")
    )
    return f"{inside} of {counted(operations, 'operation')} in {counted(kernels, 'kernel')}"


def counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
