"""Hooks under ``fullgraph=True``: they are captured when the backward runs them, or the backward raises.

One place where captured code registers a hook is one compiled function that takes the hook as its argument, so that
another hook with the same code finds the same program. A hook whose state changes each time runs as plain Python
after ``config.recompile_limit`` programs, without complaint.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from bothways.runtime.hooks import HookSite, StandsForHook
from bothways.runtime.marks import Mark, mark_of


def call_hook(hook: Any, *gradients: Any) -> Any:
    return hook(*gradients)


def compiled_hook(compile: Callable[[types.FunctionType], types.FunctionType], site: HookSite, hook: Any) -> Any:
    """What is registered at a site instead of a hook."""
    if mark_of(hook) is Mark.DISABLED:
        return hook
    if site.run is None:
        own = types.FunctionType(call_hook.__code__, call_hook.__globals__, "hook")
        own.__module__, own.__qualname__ = __name__, "hook"
        site.run = compile(own)
    return CompiledHook(site.run, hook)


class CompiledHook(StandsForHook):
    """A hook of the user's that runs compiled."""

    hook: Callable[..., Any]

    def __init__(self, run: types.FunctionType, hook: Any) -> None:
        self.run, self.hook = run, hook
        if hasattr(hook, "__name__"):  # autograd's errors name the hook
            self.__name__ = hook.__name__

    def __call__(self, *gradients: Any) -> Any:
        if torch.compiler.is_compiling():  # PyTorch's own compiler captures the backward and wants the hook itself
            return self.hook(*gradients)
        return self.run(self.hook, *gradients)
