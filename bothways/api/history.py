"""``bothways.history(fn)``: the records of all compilations of a function."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from bothways.api.modules import state_of, state_of_forward
from bothways.driver.compiled import CompiledFunction
from bothways.record.compilation import Compilation
from bothways.runtime.dispatcher import is_compiled


def history(fn: Callable[..., Any]) -> list[Compilation]:
    """The compilations of a function, method or module that ``compile`` returned, in the order they happened.

    There is one ``Compilation`` for each call that no program fitted: what was compiled and why, the seconds each stage
    took, the graphs (captured, joint, forward and backward), kernels, guards, breaks and generated sources. The rest of
    a function after a break, and functions that are called at one, are included. A record grows when a backward is
    compiled at its first run. Records keep neither programs nor objects of yours alive.

    - ``fn``: what ``compile`` returned.

    >>> double = bothways.compile(lambda x: x * 2, backend="eager")
    >>> _ = double(torch.ones(3)), double(torch.ones(3)), double(torch.ones(4))
    >>> for compilation in bothways.history(double):
    ...     print(compilation.function, compilation.conclusion.value, compilation.failed_guard is None)
    <lambda> a program True
    <lambda> a program False
    """
    state = compiled_state(fn)
    if state is None:
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        raise TypeError(f"{name} is not compiled: bothways.history takes what bothways.compile returned")
    return list(state.acting.history.compilations)


def compiled_state(target: Any) -> CompiledFunction | None:
    """The state behind what ``compile`` returned; None for anything else."""
    if isinstance(target, types.MethodType):
        behind = state_of_forward(target)
        if isinstance(behind, CompiledFunction):
            return behind
        target = target.__func__
    if isinstance(target, torch.nn.Module) and state_of(target) is None:
        target = type(target).__call__
    if isinstance(target, torch.nn.Module):
        kept = state_of(target)
        return kept if isinstance(kept, CompiledFunction) else None
    state = target.__bothways__ if is_compiled(target) else None
    return state if isinstance(state, CompiledFunction) else None
