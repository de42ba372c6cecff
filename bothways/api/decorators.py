"""What users say about their functions and tensors: disable, allow_in_graph, graph_break and the marks."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch

from bothways.backends import lookup_backend
from bothways.driver import stances
from bothways.driver.stances import STANCES, ForcedBackend, Stance
from bothways.errors import InvalidOption, InvalidTarget
from bothways.runtime import logs
from bothways.runtime.dispatcher import is_compiled
from bothways.runtime.marks import Mark, mark
from bothways.runtime.size_history import DYNAMIC_MARK, STATIC_MARK

F = TypeVar("F", bound=Callable[..., Any])


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Never capture this function: calls of it run as plain Python and break the caller's capture."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, (torch.nn.Module, type)) or not callable(fn):
        raise InvalidTarget(f"disable takes a function, not {fn!r}")
    if isinstance(fn, types.MethodType) and is_compiled(fn.__func__):
        fn = types.MethodType(fn.__func__.__wrapped__, fn.__self__)  # type: ignore[attr-defined]
    fn = fn.__wrapped__ if is_compiled(fn) else fn

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    mark(disabled, Mark.DISABLED)
    return disabled


class set_stance:
    """Say what compiled functions do from now on: one of ``"default"``, ``"force_eager"``, ``"eager_on_recompile"`` and
    ``"fail_on_recompile"``; as a context or a decorator, for so long.

    ``force_backend`` compiles with another backend than the one each function was given.
    """

    def __init__(self, stance: str = "default", *, force_backend: str | Callable[..., Any] | None = None) -> None:
        if stance not in tuple(STANCES):
            raise InvalidOption(f"stance={stance!r}: the valid stances are {', '.join(map(repr, STANCES))}")
        if force_backend is not None and stance != "default":
            raise InvalidOption(f"force_backend goes with the stance 'default', not with {stance!r}")
        backend = None if force_backend is None else ForcedBackend(lookup_backend(force_backend))
        self._stance = Stance(stance, backend)
        self._before = stances.change(self._stance)

    def __enter__(self) -> None:
        stances.change(self._stance)

    def __exit__(self, *exception: object) -> None:
        stances.change(self._before)

    def __call__(self, fn: F) -> F:
        stances.change(self._before)

        @functools.wraps(fn)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            before = stances.change(self._stance)
            try:
                return fn(*args, **kwargs)
            finally:
                stances.change(before)

        mark(decorated, Mark.DISABLED)
        return cast(F, decorated)


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
