"""Attributes set on other people's modules and classes, and set back: nothing is copied, added or removed.

``Change`` is one attribute and its new value. A ``Ledger`` makes changes, remembers what was there, and
undoes them in reverse order, leaving alone whatever somebody else has put in the same place since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """One attribute of a module or class, and the value it is to have."""

    owner: Any
    name: str
    value: Any

    def make(self) -> Any:
        """Set the attribute and return what it was."""
        before = getattr(self.owner, self.name)
        _set(self.owner, self.name, self.value)
        return before


class Ledger:
    """The changes made so far, in order, each with the value that was there before."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], tuple[Change, Any]] = {}

    def make(self, change: Change) -> None:
        """Make one change. Where it holds already, it is undone to the value it replaced elsewhere."""
        before = change.make()
        if before is change.value:
            # The module was imported meanwhile and took our value from where another change had put it.
            before = self._replaced_by(change)
        self._made[id(change.owner), change.name] = change, before

    def _replaced_by(self, change: Change) -> Any:
        for made, before in reversed(self._made.values()):
            if made.name == change.name and made.value is change.value:
                return before
        return change.value

    def before(self, owner: Any, name: str) -> Any:
        """What an attribute was before it was changed; what it is, when it was not."""
        made = self._made.get((id(owner), name))
        return made[1] if made else getattr(owner, name)

    def undo(self) -> None:
        """Set everything back, last change first."""
        while self._made:
            change, before = self._made.popitem()[1]
            if getattr(change.owner, change.name) == change.value:
                _set(change.owner, change.name, before)


def _set(owner: Any, name: str, value: Any) -> None:
    # The plain setter: PyTorch's configuration module has a __setattr__ of its own that takes flags only.
    setter: Any = type.__setattr__ if isinstance(owner, type) else object.__setattr__
    setter(owner, name, value)


# What the drop-in has changed at the moment; empty unless it is installed.
ledger = Ledger()
