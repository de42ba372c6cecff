"""What happened to one compiled function so far, with all that goes on after its breaks or is called there."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Break, Position
from bothways.record.compilation import MOST_RECORDS, Compilation, breaks_of
from bothways.record.standing import Standing


@dataclass
class History:
    """The compilations of one function, and what is known of its parts."""

    compilations: list[Compilation] = field(default_factory=list)
    parts: list[weakref.ref[Any]] = field(default_factory=list)
    rests: list[Standing] = field(default_factory=list)  # what goes on after a break and is not compiled
    # Where operations fail while their shapes are worked out, and plain Python comes through; where a number was
    # guessed wrong, or had to be known and was another one at each call.
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
    def breaks(self) -> list[Break]:
        """Where captures stopped, each once."""
        return breaks_of(self.compilations)
