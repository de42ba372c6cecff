"""Many objects that a body hands on together: it takes them as one tuple, which the table gives as it is, so that the
hundreds of tensors of a step never become variables, one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized

from bothways.capture.writing.emit import FreeNames

FROM = 32  # names; fewer are quicker, and easier to read, one by one


def are_many(names: Sized) -> bool:
    return len(names) >= FROM


class NameGroups:
    """The groups of one body. ``bound`` are the names that guards have given before it begins."""

    def __init__(self, names: FreeNames, bound: Collection[str]) -> None:
        self._names, self._bound = names, frozenset(bound)
        self.made: dict[str, tuple[str, ...]] = {}

    def text(self, hint: str, names: Sequence[str]) -> str:
        """What gives the objects of these names in order: a name where they are a group, or a list."""
        if not are_many(names) or not self._bound.issuperset(names):
            return f"[{', '.join(names)}]"
        known = next((name for name, group in self.made.items() if group == tuple(names)), None)
        if known is None:
            known = self._names.fresh(hint)
            self.made[known] = tuple(names)
        return known
