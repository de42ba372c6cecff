"""What a capture is told at its beginning and never changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bothways.errors import Position


@dataclass(frozen=True)
class CaptureOptions:
    """How one function is captured.

    ``tag`` goes into the names of injected objects, so that several programs share one namespace. ``fullgraph``: the
    user wants an error where something is left to plain Python. ``assumes``: the graph may rely on data, and fail where
    it is otherwise. ``postpones``: calls whose results the function does not ask for are made when the graph has run.
    ``copies_views``: a custom function may give a copy in place of a view of its argument where that cannot be told.
    ``computes_again``: a cached function may be inlined where its arguments vary, if that cannot be told.
    ``disbelieved``: where operations were believed to raise, and plain Python then came through, and where numbers are
    not to be guessed, or taken as they are. ``turned``: the loops of which each turn is a program. ``left``: lines of
    the function whose calls are left to plain Python.
    """

    depth_limit: int = 100
    tag: str = ""
    fullgraph: bool = False
    assumes: bool = True
    is_continuation: bool = False
    postpones: bool = True
    copies_views: bool = True
    computes_again: bool = True
    disbelieved: Collection[Position] = ()
    turned: Collection[Position] = ()
    left: Collection[Position] = ()

    @property
    def is_turn(self) -> bool:
        """Whether this is one turn of a loop, or what comes behind it."""
        return self.is_continuation and bool(self.turned) and not self.fullgraph
