"""Changes to modules, classes and functions of other packages, and their undoing: nothing is copied or removed.

``Change`` is one attribute and its new value, ``Marking`` a mark beside a function. A ``Ledger`` makes
changes, remembers what was there, and undoes them in reverse order, leaving alone whatever other code has
put in the same place since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bothways.runtime.marks import Mark, mark, mark_of, unmark


@dataclass(frozen=True)
class Change:
    """One attribute of a module, class or object, and the value it is to have."""

    owner: Any
    name: str
    value: Any

    @property
    def current(self) -> Any:
        return getattr(self.owner, self.name)

    def put(self, value: Any) -> None:
        # The plain setter: PyTorch's configuration module has a __setattr__ of its own that takes flags only.
        setter: Any = type.__setattr__ if isinstance(self.owner, type) else object.__setattr__
        setter(self.owner, self.name, value)


ABSENT = object()


@dataclass(frozen=True)
class Addition(Change):
    """An attribute that is not there before, and not afterwards."""

    @property
    def current(self) -> Any:
        return getattr(self.owner, self.name, ABSENT)

    def put(self, value: Any) -> None:
        if value is ABSENT:
            delattr(self.owner, self.name)
        else:
            super().put(value)


@dataclass(frozen=True)
class Marking:
    """A function that stays what it is, and how capture is to treat calls of it."""

    owner: Any
    value: Mark
    name: str = "(mark)"

    @property
    def current(self) -> Mark | None:
        return mark_of(self.owner)

    def put(self, value: Mark | None) -> None:
        if value is None:
            unmark(self.owner)
        else:
            mark(self.owner, value)


class Ledger:
    """The changes made so far, in order, each with what was there before."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], tuple[Change | Marking, Any]] = {}

    def make(self, change: Change | Marking) -> None:
        """Make one change. Where it holds already, it is undone to the value it replaced elsewhere."""
        key = id(change.owner), change.name
        if key in self._made:
            return  # a function that goes by two names is marked once
        before = change.current
        if before is change.value:
            # The module was imported meanwhile and took our value from where another change had put it.
            before = self._replaced_by(change)
        change.put(change.value)
        self._made[key] = change, before

    def _replaced_by(self, change: Change | Marking) -> Any:
        for earlier, before in reversed(self._made.values()):
            if earlier.name == change.name and earlier.value is change.value:
                return before
        return change.value

    def before(self, owner: Any, name: str) -> Any:
        """What an attribute was before it was changed; what it is, when it was not."""
        earlier = self._made.get((id(owner), name))
        return earlier[1] if earlier else getattr(owner, name)

    def undo(self) -> None:
        """Set everything back, last change first."""
        while self._made:
            change, before = self._made.popitem()[1]
            if change.current == change.value:
                change.put(before)


# What the drop-in has changed at the moment; empty unless it is installed.
ledger = Ledger()
