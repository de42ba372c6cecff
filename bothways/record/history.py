"""What happened to one compiled function so far, with all that goes on after its breaks or is called there."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Break, Position
from bothways.record.compilation import (
    MOST_RECORDS,
    Compilation,
    breaks_of,
    failed_guards_of,
    generated_of,
    graphs_of,
    outcomes_of,
)
from bothways.record.outcomes import Generated, Outcome
from bothways.record.standing import Standing, told


@dataclass
class History:
    """The compilations of one function, and what is known of its parts."""

    compilations: list[Compilation] = field(default_factory=list)
    parts: list[weakref.ref[Any]] = field(default_factory=list)
    rests: list[Standing] = field(default_factory=list)  # what goes on after a break and is not compiled
    root: weakref.ref[Any] | None = field(default=None, repr=False)
    captures: int = 0
    # Where operations fail while their shapes are worked out, and plain Python comes through.
    disbelieved: set[Position] = field(default_factory=set)
    # The loops that train, of which each turn is a call of one program.
    turned: set[Position] = field(default_factory=set)
    # The lines that made a program for each call: what they call is plain Python's.
    left: set[Position] = field(default_factory=set)

    def add(self, compilation: Compilation) -> None:
        """Begin a record. Where there are very many, the oldest goes that no program in use came of."""
        if len(self.compilations) >= MOST_RECORDS:
            old = next((known for known in self.compilations if known.program is None), None)
            with contextlib.suppress(ValueError):  # another thread was faster, or all are in use
                self.compilations.remove(old)  # type: ignore[arg-type]
        self.compilations.append(compilation)

    @property
    def recompilations(self) -> list[str]:
        """The guards that did not hold where a function with programs was compiled again."""
        return failed_guards_of(self.compilations)

    @property
    def breaks(self) -> list[Break]:
        return breaks_of(self.compilations)

    @property
    def graphs(self) -> list[Any]:
        """The captured graphs."""
        return graphs_of(self.compilations)

    @property
    def generated(self) -> list[Generated]:
        return generated_of(self.compilations)

    @property
    def outcomes(self) -> list[Outcome]:
        """How each of the graphs runs."""
        return outcomes_of(self.compilations)

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
