"""What became of each captured graph: fused kernels, ATen operations, or what was captured, and why.

Facts for people: numbers and sentences, no tensor and no graph. Whoever decides how a graph runs says it with
``generated.note``; here is only how that reads.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


class Way(enum.Enum):
    """How operations run. The values are what people read."""

    KERNELS = "compiled"
    ATEN = "as ATen operations"
    CAPTURED = "as captured"


@dataclass(frozen=True)
class KernelFacts:
    """One kernel: its name in the generated text, the routine it runs in, the operations it computes, each with its
    line, and the bytes it reads and writes at the sizes it was compiled for."""

    name: str
    routine: str
    members: tuple[str, ...] = ()
    read: int = 0
    written: int = 0


@dataclass(frozen=True)
class Generated:
    """What was generated for one graph: ``name`` says which, ``texts`` are the programs by language.

    ``from_cache`` is True if it was compiled before, by another process or for another function.
    """

    name: str
    texts: dict[str, str]
    kernels: tuple[KernelFacts, ...] = ()
    from_cache: bool = False


@dataclass(frozen=True)
class SavedValue:
    """A value that is saved for the backward: its name, what it is, its bytes, and the line that computed it."""

    name: str
    value: str
    size: int
    where: str = ""
    is_input: bool = False  # which the caller holds as well, or may


@dataclass(frozen=True)
class Piece:
    """How one piece of a graph runs: ``name`` says which (forward, backward, a part), ``reason`` why not in kernels."""

    name: str
    way: Way
    operations: int = 0
    in_kernels: int = 0
    kernels: int = 0
    reason: str = ""

    def __str__(self) -> str:
        count = f"{counted(self.operations, 'operation')} " * bool(self.operations)
        texts = {Way.KERNELS: shares([self]), Way.ATEN: f"{count}by ATen", Way.CAPTURED: f"{count}as captured"}
        return f"{self.name}: {texts[self.way]}{f' ({self.reason})' if self.reason else ''}"


@dataclass
class Outcome:
    """How one captured graph runs. Pieces that are compiled at their first run, as backwards are, are added then."""

    function: str
    backend: str
    operations: int = 0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def way(self) -> Way | None:
        """The best way of its pieces; None if a backend of the user's runs it."""
        return next((way for way in Way if any(piece.way is way for piece in self.pieces)), None)

    @property
    def reasons(self) -> list[str]:
        """Why some of it is not compiled."""
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
        alike = [outcome for outcome in outcomes if outcome.way is way]
        if alike:
            details = "; ".join(dict.fromkeys(_details(way, alike)))
            parts.append(f"{len(alike)} {(way or Way.KERNELS).value}{f' ({details})' if details else ''}")
    return f"{counted(len(outcomes), 'graph')}: {', '.join(parts)}"


def _details(way: Way | None, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What there is to say of graphs that run in the same way."""
    pieces = [piece for outcome in outcomes for piece in outcome.pieces]
    if way is Way.KERNELS:
        yield shares(pieces)
    if way is None:
        yield from (f"by the backend {outcome.backend}" for outcome in outcomes)
    for piece in pieces:
        if piece.reason:
            name = "" if piece.operations else f"{piece.name} "  # of some calls, or a backward
            yield piece.reason if piece.way is way else f"{name}{piece.way.value}: {piece.reason}"


def shares(pieces: Sequence[Piece]) -> str:
    """``14 of 16 operations in 3 kernels``."""
    inside, operations, kernels = (
        sum(getattr(piece, name) for piece in pieces) for name in ("in_kernels", "operations", "kernels")
    )
    return f"{inside} of {counted(operations, 'operation')} in {counted(kernels, 'kernel')}"


def counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
