"""Statistics of the process: how many frames, graphs, operations and breaks there have been.

Capture and the dispatcher add to ``counters``; people and tests read it. The object itself is never
replaced, so a name imported from here stays current; only the ``groups`` behind it may be exchanged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import ItemsView, Iterator

Groups = defaultdict[str, Counter[str]]


class Counters:
    """Counters in named groups; a group that nothing was counted in yet is empty.

    The groups in use, and what is counted in each:

    - ``frames``: ``total``, ``ok`` (frames looked at, and those that were captured)
    - ``stats``: ``unique_graphs``, ``calls_captured`` (graphs sent to a backend, and the calls in them)
    - ``graph_break``: breaks by their reason
    """

    def __init__(self) -> None:
        self.groups: Groups = defaultdict(Counter)

    def __getitem__(self, group: str) -> Counter[str]:
        return self.groups[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def items(self) -> ItemsView[str, Counter[str]]:
        """The groups by name."""
        return self.groups.items()

    def clear(self) -> None:
        """Start counting from zero."""
        self.groups.clear()

    def __repr__(self) -> str:
        return repr({name: dict(group) for name, group in self.items()})


counters = Counters()
