"""Gradients that a step clears at its beginning, left in place until its graph has run.

A replayed graph may give the very same tensors again if no other reference to them is left: making hundreds of fresh
tensors takes longer than everything else that the host does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Spares:
    """Whose gradients they are. ``are_wanted``: whether a graph has given gradients that it may give again."""

    __slots__ = ("are_wanted", "owners")

    def __init__(self) -> None:
        self.owners: Sequence[Any] = ()
        self.are_wanted = False

    def settle(self) -> None:
        """They are given again."""
        self.owners = ()

    def clear(self) -> None:
        """They are not: their owners have none, as if they had been let go at once."""
        owners, self.owners = self.owners, ()
        for owner in owners:
            owner.grad = None
