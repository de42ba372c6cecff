"""The order in which a backward comes to the leaves that a graph was computed from, as the engine goes through eager's
nodes: a node that stands for all of them hands out its gradients at once, and hooks of leaves would tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from bothways.torch_compat.engine_queue import EngineQueue

MOST_LOOKED_AT = 64  # calls with other leaves, of which it is known that they have no hooks


class LeafHooks:
    """The leaves that calls come to in order: none, until several have hooks. Those come after the graph was made, too,
    and modules of one code share it. PyTorch numbers the hooks of a process: leaves without have none until the next.
    """

    def __init__(self, order: tuple[int, ...]) -> None:
        self.places: tuple[int, ...] = ()
        self._order = order
        self._leaves: Callable[[Sequence[torch.Tensor]], Any] | None = itemgetter(*order) if len(order) > 1 else None
        self._asked: dict[tuple[int, ...], int] = {}

    def ask(self, inputs: Sequence[torch.Tensor]) -> None:
        """Look at the leaves of a call, if they may have hooks that no call has shown yet."""
        if self.places or self._leaves is None:
            return
        leaves = tuple(map(id, self._leaves(inputs)))
        count = RemovableHandle.next_id
        if self._asked.get(leaves) != count:
            if len(self._asked) >= MOST_LOOKED_AT:
                self._asked.clear()
            self._asked[leaves] = count
            self.places = _hooked_in_order(self._order, inputs)


def leaf_order(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The places of the inputs in the order in which a backward of all results comes to them; those alone that are
    leaves of the trace, as all inputs are."""
    roots = [result.grad_fn for result in results if result.grad_fn is not None]
    waiting = _waiting(roots)
    waiting.update(roots)
    places = {id(value): place for place, value in enumerate(inputs)}
    ready, order = EngineQueue(), list[int]()
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


def _arrive(ready: EngineQueue, waiting: Counter[Any], nodes: Sequence[Any]) -> None:
    for node in nodes:
        if node is not None:
            waiting[node] -= 1
            if not waiting[node]:
                ready.push(node._sequence_nr(), node)


def _hooked_in_order(order: Sequence[int], inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The leaves among inputs in that order, if several have hooks: otherwise no one is told."""
    leaves = [place for place in order if inputs[place].requires_grad and inputs[place].is_leaf]
    hooked = [place for place in leaves if _is_hooked(inputs[place])]
    return tuple(leaves) if len(hooked) > 1 else ()


def _is_hooked(tensor: torch.Tensor) -> bool:
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)
