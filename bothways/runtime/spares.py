"""Gradients that a step lets go of first of all, left in place for the moment until its graph has run: one that is
replayed gives them again, where no other reference is left, since hundreds of fresh tensors take longer than all
else that the host does.
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
