"""What programs call to let go of gradients before their graph runs, which frees the memory for it, and to set the new
ones afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.calls.call_library import word_library
from bothways.runtime.compiled_graph import GRAPH, UNKNOWN


def forget_gradients(graph: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> None:
    """Leave the gradients of tensors to a graph that may give them again, and let go of them otherwise."""
    spares = getattr(graph, GRAPH, UNKNOWN).spares
    if spares is not None and spares.are_wanted:
        spares.owners = tensors
        return
    for tensor in tensors:
        tensor.grad = None


def gradient_setter() -> Callable[..., object]:
    """What gives tensors their gradients, which begin at a place of a sequence, or fill it; most have them already,
    where these are given again."""
    library = word_library()
    return _set_gradients if library is None else library.set_gradients


def _set_gradients(tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], first: int = 0) -> None:
    for tensor, gradient in zip(tensors, gradients[first : first + len(tensors)], strict=True):
        tensor.grad = gradient
