"""Which backwards go through the autograd nodes of a trace: behind which results they are, to which inputs they lead.

A second backward through nodes that keep a tensor is an error in eager, and so is one through a node whose tensors were
changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from bothways import torch_compat

Way = tuple[int, int]  # results and inputs, as bits


def ways_through(behind: Sequence[Collection[Any]], wrapped: Sequence[torch.Tensor]) -> dict[Any, Way]:
    """Each node with the results behind which it is, and the inputs to which it leads; ``behind`` are the nodes of each
    result."""
    results: dict[Any, int] = {}
    for number, nodes in enumerate(behind):
        for node in nodes:
            results[node] = results.get(node, 0) | 1 << number
    leads = _leads(results, wrapped)
    return {node: (results[node], leads[node]) for node in results}


def pieces_of(ways: Mapping[Any, Way]) -> tuple[int, ...]:
    """The ways of the nodes that save something, one after the other; nodes of the same ways are one."""
    pairs = sorted({way for node, way in ways.items() if torch_compat.has_saved_tensors(node)})
    return tuple(number for pair in pairs for number in pair)


def _leads(nodes: Collection[Any], wrapped: Sequence[torch.Tensor]) -> dict[Any, int]:
    """To which inputs each node leads, as bits."""
    places = {id(value): place for place, value in enumerate(wrapped)}
    leads: dict[Any, int] = {}
    pending = list(nodes)
    while pending:
        node = pending[-1]
        if node in leads:
            pending.pop()
            continue
        following = [other for other, _ in node.next_functions if other is not None]
        unknown = [other for other in following if other not in leads]
        if unknown:
            pending += unknown
            continue
        place = places.get(id(getattr(node, "variable", None)))
        bits = 0 if place is None else 1 << place
        for other in following:
            bits |= leads[other]
        leads[pending.pop()] = bits
    return leads
