"""Inputs that a graph changes, kept so that a call whose graph fails half-way can start again as plain Python.

A graph that was differentiated writes to its inputs when everything else is done, so nothing is to be undone where
it fails, the statistics of normalisations aside. One that runs as captured has changed what came before the failing
operation; of tensors up to a size there is a copy. What cannot be put back is left as it is, and the error leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import torch_compat

# Copying more than so many elements before every call would cost more than an error that is rare is worth.
MOST_ELEMENTS = 1 << 16

# A tensor, its version before the call, and a copy of what was in it.
Kept = tuple[torch.Tensor, int | None, torch.Tensor | None]


def keep_inputs(
    graph: Callable[..., Any], tensors: Sequence[torch.Tensor], changed: Sequence[int], statistics: Sequence[int]
) -> list[Kept]:
    """What is needed to tell whether the graph has changed its inputs, and to undo it.

    ``changed`` and ``statistics`` are those that may be written to, the latter in the middle of any graph.
    """
    copied = statistics if getattr(graph, "writes_at_end", False) else {*changed, *statistics}
    return [
        (tensor, torch_compat.version_of(tensor), _copy(tensor) if index in copied else None)
        for index, tensor in enumerate(tensors)
    ]


def _copy(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.numel() > MOST_ELEMENTS or tensor.grad_fn is not None:
        return None
    return tensor.detach().clone()


def put_back(kept: Sequence[Kept]) -> bool:
    """Undo what a graph did to its inputs; False where that is not possible, and nothing is undone."""
    for tensor, version, copy in kept:
        # What an operation in place made part of autograd's graph stays one.
        if (copy is not None and tensor.grad_fn is not None) or (
            copy is None and torch_compat.version_of(tensor) != version
        ):
            return False
    with torch.no_grad():
        for tensor, _, copy in kept:
            if copy is not None:  # whatever the version says: it does not count what happens to statistics
                tensor.copy_(copy)
    return True
