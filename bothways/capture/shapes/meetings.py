"""Where ways of a divided backward meet again.

A backward that stops at a tensor and goes on from it later may have come, by another way, to what lies behind that
tensor: around a layer whose result is hooked there is a residual connection. Autograd goes on from such a place once,
when all has come, so the backward has to be divided there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bothways import torch_compat

# An autograd node, and which of its results: what a tensor with a history is known by.
Edge = tuple[Any, int]


class RunsTwice(Exception):
    """Nothing can be divided where ways meet."""


def edge_of(tensor: torch.Tensor) -> Edge:
    return tensor.grad_fn, tensor.output_nr


def meetings(
    roots: Iterable[torch.Tensor], stops: Iterable[torch.Tensor], together: Iterable[torch.Tensor] = ()
) -> list[Edge]:
    """Where a backward from ``roots`` that stops at some tensors, and goes on from each, has to stop as well.

    From those of one node that are ``together`` it goes on at once.
    """
    divided = {edge_of(tensor) for tensor in stops if tensor.grad_fn is not None}
    joined = {tensor.grad_fn for tensor in together}
    edges: list[Edge] = []
    arriving: dict[Any, dict[int, set[Edge | None]]] = {}  # from which stops (None: the roots) gradients come
    begun = [tensor for tensor in roots if tensor.grad_fn is not None]
    for root in begun:
        arriving.setdefault(root.grad_fn, {}).setdefault(root.output_nr, set()).add(None)
    for step in _in_order(root.grad_fn for root in begun):
        come = arriving.pop(step, {})
        ways: set[Edge | None] = set()
        for number, before in come.items():
            ways |= {(step, number)} if (step, number) in divided else before
        if step in joined:
            ways = {(step, 0)}
        elif len(ways) > 1 and not hasattr(step, "variable"):
            if len(come) == 1:
                [number] = come
                ways = {(step, number)}
                edges.append((step, number))
            elif isinstance(step, torch.autograd.function.BackwardCFunction) or torch_compat.has_saved_tensors(step):
                raise RunsTwice("one of several results of an operation is hooked")
            # One that keeps nothing may run for each way by itself; what comes of it is added up behind.
        for following, number in step.next_functions:
            if following is not None:
                arriving.setdefault(following, {}).setdefault(number, set()).update(ways)
    return edges


def _in_order(begun: Iterable[Any]) -> Iterator[Any]:
    """Autograd nodes, each before those that it leads to."""
    finished: list[Any] = []
    seen: set[Any] = set()
    for first in begun:
        pending = [(first, False)]
        while pending:
            step, is_done = pending.pop()
            if is_done:
                finished.append(step)
            elif step not in seen:
                seen.add(step)
                pending.append((step, True))
                pending.extend((following, False) for following, _ in step.next_functions if following is not None)
    return reversed(finished)
