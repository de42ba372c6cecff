"""Inputs that a graph changes, kept so that a call whose graph fails half-way can start again as plain Python.

A graph that was differentiated writes to its inputs when everything else is done, so nothing is to be undone where
it fails, the statistics of normalisations aside. One that runs as captured has changed what came before the failing
operation; of tensors up to a size there is a copy. What cannot be put back is left as it is, and the error leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch

from bothways import torch_compat
from bothways.runtime.compiled_graph import GRAPH, UNKNOWN

# Copying more than so many elements before every call would cost more than an error that is rare is worth.
MOST_ELEMENTS = 1 << 16


class Kept(NamedTuple):
    """A tensor before the call; ``version`` is None where nobody counts what is done to it."""

    tensor: torch.Tensor
    version: int | None
    is_written: bool  # before the graph fails, as far as names tell
    copy: torch.Tensor | None

    def may_have_changed(self) -> bool:
        return self.is_written if self.version is None else torch_compat.version_of(self.tensor) != self.version


def keep_inputs(
    graph: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    counted: AbstractSet[int],
    as_data: AbstractSet[int],
    statistics: AbstractSet[int],
) -> list[Kept]:
    """What is needed to tell whether the graph has changed its inputs, and to undo it.

    The positions are those of inputs that may be written to: counted by their version, or not because that is done to
    their ``.data``, or because they are statistics, which are written in the middle of any graph.
    """
    # Where inputs share their memory, a differentiated graph runs as captured.
    on_its_way = not getattr(graph, GRAPH, UNKNOWN).writes_at_end or _share_memory(tensors)
    kept: list[Kept] = []
    for index, tensor in enumerate(tensors):
        is_uncounted = index in as_data or index in statistics
        version = None if is_uncounted else torch_compat.version_of(tensor)
        # Operations write to inference tensors before they refuse to, outside of that mode: also the last of all.
        is_written = is_uncounted or (index in counted and (on_its_way or tensor.is_inference()))
        kept.append(Kept(tensor, version, is_written, _copy(tensor) if is_written else None))
    return kept


def _share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    return len(set(map(torch_compat.storage_of, tensors))) < len(tensors)


def _copy(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.numel() > MOST_ELEMENTS or tensor.grad_fn is not None:
        return None
    return _each_element_once(tensor.detach() if tensor.requires_grad else tensor).clone()


def _each_element_once(tensor: torch.Tensor) -> torch.Tensor:
    """The part of an expanded tensor that everything else repeats: nobody may write to the whole."""
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())]


def put_back(kept: Sequence[Kept]) -> bool:
    """Undo what a graph did to its inputs; False where that is not possible, and nothing is undone."""
    changed: list[tuple[torch.Tensor, torch.Tensor]] = []
    for one in kept:
        if one.may_have_changed():
            # What an operation in place made part of autograd's graph stays one.
            if one.copy is None or one.tensor.grad_fn is not None:
                return False
            changed.append((one.tensor, one.copy))
    for tensor, copy in changed:
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            _each_element_once(tensor).copy_(copy)
    return True
