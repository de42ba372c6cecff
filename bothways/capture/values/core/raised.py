"""An exception of the captured program, while its handler is looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.errors import Position

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.objects.exceptions import ExceptionValue


class Raised(Exception):
    """An exception of the captured program, on its way to the handler that catches it."""

    def __init__(self, value: ExceptionValue, *, again: bool = False) -> None:
        """``again``: it goes on from a handler, which leaves no trace of its own."""
        super().__init__()
        self.value, self._again = value, again

    def remember(self, tracer: Tracer, position: Position) -> None:
        """The exception passes a frame."""
        if not self._again:
            self.value.note_raised(tracer, position)
        self._again = False
