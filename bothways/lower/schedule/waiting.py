"""How long each node of a graph has to wait, counted in calls of ATen that come one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from bothways.lower.ir.prims import Extern, Node


def calls_before(live: Iterable[Node]) -> dict[Node, int]:
    """Of each node, the most calls of ATen that wait for each other before it."""
    calls: dict[Node, int] = {}
    pending = list(live)
    while pending:
        node = pending[-1]
        missing = [source for source in node.sources() if source not in calls]
        if node not in calls and missing:
            pending += missing
            continue
        calls[node] = max((calls[source] + isinstance(source, Extern) for source in node.sources()), default=0)
        pending.pop()
    return calls
