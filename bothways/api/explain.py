"""``bothways.explain(fn)``: what has become of a function so far; called with arguments, it runs one call first."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from bothways.api.compile import check_target, compile
from bothways.api.modules import state_of
from bothways.driver.compiled import CompiledFunction
from bothways.report import Explanation
from bothways.runtime.dispatcher import is_compiled


def explain(fn: Callable[..., Any]) -> Explanation:
    """Print ``explain(fn)`` to read what has happened to a compiled function so far, which runs nothing.

    ``explain(fn)(*args)`` calls the function once, with all that it does (of a training step, that is one more step),
    and explains with that call. A plain function is compiled for the occasion.
    """
    state = _state_of(fn)
    if state is None:
        check_target(fn)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        target = fn if _state_of(fn) is not None else compile(fn)
        result = target(*args, **kwargs)
        state = _state_of(target)
        return _explained(target, state, run, has_run=True, result=result)

    return _explained(fn, state, run)


def _explained(
    target: Any, state: CompiledFunction | None, run: Callable[..., Explanation], **call: Any
) -> Explanation:
    if state is None:
        name = getattr(target, "__qualname__", type(target).__qualname__)
        return Explanation(name, is_compiled=False, run=run, **call)
    state = state.acting
    history = state.history
    return Explanation(
        name=state.original.__qualname__,
        programs=state.programs,
        graphs=list(history.graphs),
        outcomes=list(history.outcomes),
        standings=state.standings,
        breaks=list(history.breaks),
        recompilations=list(history.recompilations),
        generated=list(history.generated),
        plain_from_now_on=history.plain_from_now_on,
        run=run,
        **call,
    )


def _state_of(target: Any) -> CompiledFunction | None:
    if isinstance(target, types.MethodType):
        target = target.__func__
    if isinstance(target, torch.nn.Module) and state_of(target) is None:
        target = type(target).__call__
    if isinstance(target, torch.nn.Module):
        return state_of(target)
    state = target.__bothways__ if is_compiled(target) else None
    return state if isinstance(state, CompiledFunction) else None
