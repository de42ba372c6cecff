"""``bothways.explain(fn)(*args)``: runs one call and tells how it was compiled."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from bothways.api.compile import check_target, compile
from bothways.api.modules import state_of
from bothways.report import Explanation
from bothways.runtime.compiled import CompiledFunction
from bothways.runtime.dispatcher import is_compiled


def explain(fn: Callable[..., Any]) -> Callable[..., Explanation]:
    """Call ``explain(fn)(*args)`` as you would ``fn(*args)``; print what it returns.

    A function that is compiled already tells its whole history; a plain one is compiled for the occasion.
    """

    if _state_of(fn) is None:
        check_target(fn)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        target = fn if _state_of(fn) is not None else compile(fn)
        result = target(*args, **kwargs)
        state = _state_of(target)
        assert state is not None
        history = state.history
        return Explanation(
            name=state.original.__qualname__,
            programs=state.programs,
            graphs=list(history.graphs),
            breaks=list(history.breaks),
            recompilations=list(history.recompilations),
            generated=list(history.generated),
            plain_from_now_on=state.dispatcher.forwards,
            result=result,
        )

    return explained


def _state_of(target: Any) -> CompiledFunction | None:
    if isinstance(target, types.MethodType):
        target = target.__func__
    if isinstance(target, torch.nn.Module) and state_of(target) is None:
        target = type(target).__call__
    if isinstance(target, torch.nn.Module):
        return state_of(target)
    state = target.__bothways__ if is_compiled(target) else None
    return state if isinstance(state, CompiledFunction) else None
