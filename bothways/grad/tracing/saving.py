"""Which results of a trace have autograd nodes in common that save something, and to which inputs those lead.

A second backward through nodes that keep a tensor is an error in eager.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from bothways import torch_compat


def pieces_behind(behind: Sequence[Collection[Any]], wrapped: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The results, as bits, behind which a node lies that saves something, then the inputs to which it leads, as bits;
    then those of the next one. Nodes of which both are the same are one. ``behind`` are the nodes of each result."""
    results: dict[Any, int] = {}
    for number, nodes in enumerate(behind):
        for node in nodes:
            results[node] = results.get(node, 0) | 1 << number
    leads = _leads(results, wrapped)
    saving = (node for node in results if torch_compat.has_saved_tensors(node))
    pairs = sorted({(results[node], leads[node]) for node in saving})
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
