"""What users say about their functions and tensors: disable, allow_in_graph, graph_break and the marks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from bothways.errors import InvalidTarget
from bothways.runtime import logs
from bothways.runtime.marks import Mark, mark
from bothways.runtime.size_history import DYNAMIC_MARK, STATIC_MARK

F = TypeVar("F", bound=Callable[..., Any])


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Never capture this function: calls of it run as plain Python and break the caller's capture."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, (torch.nn.Module, type)) or not callable(fn):
        raise InvalidTarget(f"disable takes a function, not {fn!r}")
    fn = getattr(fn, "__wrapped__", fn) if hasattr(fn, "__bothways__") else fn

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    mark(disabled, Mark.DISABLED)
    return disabled


def allow_in_graph(fn: F) -> F:
    """Record calls of this function as one node of the graph, without looking inside."""
    if not callable(fn):
        raise InvalidTarget(f"allow_in_graph takes a callable, not {fn!r}")
    mark(fn, Mark.IN_GRAPH)
    return fn


def assume_constant_result(fn: F) -> F:
    """Call this function once, at capture time, and take its result as a constant of the program."""
    if not callable(fn):
        raise InvalidTarget(f"assume_constant_result takes a callable, not {fn!r}")
    mark(fn, Mark.CONSTANT_RESULT)
    return fn


def graph_break() -> None:
    """End the graph here; outside a capture it does nothing."""


def is_compiling() -> bool:
    """Whether this code is being captured: True inside a capture, False when it runs as plain Python."""
    return logs.capturing()


mark(graph_break, Mark.GRAPH_BREAK)
mark(is_compiling, Mark.IS_COMPILING)


def mark_dynamic(tensor: torch.Tensor, dims: int | Sequence[int]) -> None:
    """Say that these sizes of the tensor will change between calls."""
    _mark_dims(tensor, dims, DYNAMIC_MARK)


def mark_static(tensor: torch.Tensor, dims: int | Sequence[int] | None = None) -> None:
    """Say that these sizes of the tensor (all by default) never change between calls."""
    _mark_dims(tensor, range(tensor.dim()) if dims is None else dims, STATIC_MARK)


mark(mark_static, Mark.STATIC_SIZES)


def _mark_dims(tensor: torch.Tensor, dims: int | Sequence[int], attribute: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidTarget(f"a tensor is expected, not {tensor!r}")
    chosen = (dims,) if isinstance(dims, int) else tuple(dims)
    for dim in chosen:
        if not -tensor.dim() <= dim < tensor.dim():
            raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions")
    already: set[int] = getattr(tensor, attribute, set())
    setattr(tensor, attribute, already | {dim % tensor.dim() for dim in chosen})
