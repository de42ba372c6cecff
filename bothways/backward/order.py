"""In which order eager's engine runs the nodes of a backward; the door for compilers hands them over in another.

Hooks run, and gradients are summed, in the order of the nodes. Both orders follow from the autograd graph, which is
walked here: eager takes the ready node that was made last, leaves first of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from bothways.torch_compat import backward_engine
from bothways.torch_compat.engine_queue import EngineQueue

ROOT = "torch::autograd::GraphRoot"
LEAF = "torch::autograd::AccumulateGrad"


def order_of(roots: Iterable[torch.Tensor], inputs: Sequence[Any], names: Sequence[str]) -> list[int] | None:
    """The places in ``names``, the nodes as they were handed over, in the order in which eager runs them.

    None where the walk does not meet the same nodes.
    """
    edges = [backward_engine.node_of(root) for root in roots]
    following = {None: edges}
    waiting: dict[Any, int] = {}
    pending = list(edges)
    for node in edges:
        waiting[node] = waiting.get(node, 0) + 1
    seen = set(edges)
    while pending:
        node = pending.pop()
        following[node] = [other for other, _ in node.next_functions if other is not None]
        for other in following[node]:
            waiting[other] = waiting.get(other, 0) + 1
            if other not in seen:
                seen.add(other)
                pending.append(other)
    runs = _leading_to({backward_engine.node_of(one) for one in inputs}, following) if inputs else None
    handed = _handed_over(following, dict(waiting), runs)
    if [ROOT, *(node.name() for node in handed[1:])] != list(names):
        return None
    place = {node: index for index, node in enumerate(handed)}
    return [place[node] for node in _as_eager(following, waiting, runs)]


def _leading_to(targets: set[Any], following: dict[Any, list[Any]]) -> set[Any]:
    """The nodes that lead to one of these, and these."""
    before: dict[Any, list[Any]] = {}
    for node, others in following.items():
        for other in others:
            before.setdefault(other, []).append(node)
    leading, left = set(targets), list(targets)
    while left:
        for node in before.get(left.pop(), ()):
            if node not in leading:
                leading.add(node)
                left.append(node)
    return leading


def _handed_over(following: dict[Any, list[Any]], waiting: dict[Any, int], runs: set[Any] | None) -> list[Any]:
    left: list[Any] = [None]
    order: list[Any] = []
    while left:
        node = left.pop()
        order.append(node)
        for other in following.get(node, ()):
            if runs is not None and other not in runs:
                continue
            waiting[other] -= 1
            if not waiting[other]:
                left.append(other)
    return order


def _as_eager(following: dict[Any, list[Any]], waiting: dict[Any, int], runs: set[Any] | None) -> list[Any]:
    ready, order = EngineQueue(), [None]

    def reach(others: list[Any]) -> None:
        for other in others:
            if runs is not None and other not in runs:
                continue
            waiting[other] -= 1
            if not waiting[other]:
                ready.push(float("inf") if other.name() == LEAF else backward_engine.sequence_number(other), other)

    reach(following[None])
    while ready:
        node = ready.pop()
        order.append(node)
        reach(following.get(node, []))
    return order
