"""The order in which a backward comes to the leaves that a graph was computed from, as the engine goes through eager's
nodes: a node that stands for all of them hands out its gradients at once, and hooks of leaves would tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch


class _Ready:
    """The engine's queue: of the nodes that may run the youngest first, and leaves before all. Which of several leaves
    comes first is decided by how C++ keeps a heap."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, node: Any) -> None:
        self._heap.append((node._sequence_nr(), node))
        self._rise(len(self._heap) - 1)

    def pop(self) -> Any:
        heap = self._heap
        first, last = heap[0], heap.pop()
        if heap:
            hole, size = 0, len(heap)
            while 2 * hole + 1 < size:
                right = 2 * hole + 2
                child = right if right < size and heap[right][0] >= heap[right - 1][0] else right - 1
                heap[hole], hole = heap[child], child
            heap[hole] = last
            self._rise(hole)
        return first[1]

    def _rise(self, place: int) -> None:
        heap = self._heap
        item = heap[place]
        while place and heap[(place - 1) // 2][0] < item[0]:
            heap[place], place = heap[(place - 1) // 2], (place - 1) // 2
        heap[place] = item


def leaf_order(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The places of the inputs in the order in which a backward of all results comes to them; those alone that are
    leaves of the trace, as all inputs are."""
    roots = [result.grad_fn for result in results if result.grad_fn is not None]
    waiting = _waiting(roots)
    waiting.update(roots)
    places = {id(value): place for place, value in enumerate(inputs)}
    ready, order = _Ready(), list[int]()
    _arrive(ready, waiting, roots)
    while ready:
        node = ready.pop()
        place = places.get(id(getattr(node, "variable", None)))
        if place is not None:
            order.append(place)
        _arrive(ready, waiting, [other for other, _ in node.next_functions])
    return tuple(order)


def _waiting(roots: Sequence[Any]) -> Counter[Any]:
    """How often each node is led to by those that run before it."""
    counts: Counter[Any] = Counter()
    seen, pending = set(roots), list(dict.fromkeys(roots))
    while pending:
        for other, _ in pending.pop().next_functions:
            if other is not None:
                counts[other] += 1
                if other not in seen:
                    seen.add(other)
                    pending.append(other)
    return counts


def _arrive(ready: _Ready, waiting: Counter[Any], nodes: Sequence[Any]) -> None:
    for node in nodes:
        if node is not None:
            waiting[node] -= 1
            if not waiting[node]:
                ready.push(node)


def hooked_in_order(order: Sequence[int], inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The leaves among inputs in that order, if several have hooks: otherwise no one is told."""
    leaves = [place for place in order if inputs[place].requires_grad and inputs[place].is_leaf]
    hooked = [place for place in leaves if _is_hooked(inputs[place])]
    return tuple(place for place in leaves if not inputs[place]._is_view()) if len(hooked) > 1 else ()


def _is_hooked(tensor: torch.Tensor) -> bool:
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)
