"""Gradients that a step lets go of first of all, left in place for the moment until its graph has run: one that is
replayed gives them again, where no other reference is left, since hundreds of fresh tensors take longer than all
else that the host does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Spares:
    """Where a graph finds them. ``are_wanted``: whether it has given gradients that it may give again."""

    __slots__ = ("_owners", "_tensors", "are_wanted")

    def __init__(self) -> None:
        self._owners: Sequence[Any] = ()
        self._tensors: tuple[Any, ...] = ()
        self.are_wanted = False

    def leave(self, owners: Sequence[Any], tensors: tuple[Any, ...]) -> None:
        self._owners, self._tensors = owners, tensors

    def take(self) -> tuple[Any, ...]:
        """What was left; whoever takes it is the only one who holds it, its owners aside."""
        tensors, self._tensors = self._tensors, ()
        return tensors

    def settle(self) -> None:
        """They are given again."""
        self._owners = ()

    def clear(self) -> None:
        """They are not: their owners have none, as if they had been let go at once."""
        owners, self._owners, self._tensors = self._owners, (), ()
        for owner in owners:
            owner.grad = None
