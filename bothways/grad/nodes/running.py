"""Compiled graphs as functions that can be called, and what has to be known when one is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.grad.tracing.traced import Strides
from bothways.runtime.compiled_graph import known_of


def takes_list(run: Callable[..., Any]) -> bool:
    """Whether a compiled graph takes its inputs as one list that it may empty, so that memory is freed early."""
    return known_of(run).takes_list


def with_arguments(run: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph as a function of its inputs."""
    return (lambda *values: run(list(values))) if takes_list(run) else run


def as_traced(run: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph under the autocast of now: it holds the casts already, and is not cast again."""
    if not torch_compat.is_any_autocast_enabled():
        return run

    @functools.wraps(run)
    def without_autocast(*values: Any, **options: Any) -> Any:
        with torch_compat.without_autocast():
            return run(*values, **options)

    return without_autocast


def released(
    results: Sequence[Any], eager: Sequence[bool], refused: Sequence[int] | None
) -> tuple[Sequence[Any], Sequence[int]]:
    """The results of a graph, as views of no tensor where they are none in ``eager`` or autograd lets none change them,
    and which those are.

    That is so in every call, and looked for in the first one, where ``refused`` is None.
    """
    if refused is None:
        pairs = enumerate(zip(results, eager, strict=False))
        views = [(index, is_one) for index, (value, is_one) in pairs if value is not None and value._is_view()]
        may_refuse = torch.is_grad_enabled()
        refused = tuple(
            index
            for index, is_one in views
            if not is_one or (may_refuse and torch_compat.refuses_changes(results[index]))
        )
    if refused:
        results = [value.detach() if index in refused else value for index, value in enumerate(results)]
    return results, refused


def autograd_is_watched() -> bool:
    """Whether a mode or a hook looks at each of autograd's operations, or at what each saves: these have to be its own.

    PyTorch's own saved-tensor hooks, for activation checkpointing or to move memory, do not care what is saved.
    """
    if torch.is_anomaly_enabled() or torch_compat.in_forward_mode():
        return True
    hooks = torch_compat.top_saved_tensors_hooks()
    return hooks is not None and not (getattr(hooks[0], "__module__", None) or "").startswith("torch.")


def strides_of(tangents: Sequence[torch.Tensor | None]) -> Strides:
    """Which results received a gradient, and how each is laid out: formulas of eager look at it, so ours must."""
    return tuple([None if tangent is None else tangent.stride() for tangent in tangents])


def outlined(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor as it was laid out: what nothing reads may have got another shape in place since."""
    return tensor if tuple(tensor.shape) == shape else tensor.new_empty_strided(shape, strides)
