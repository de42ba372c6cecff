"""Hooks under ``fullgraph=True``: they are captured when the backward runs them, or the backward raises.

One place where captured code registers a hook is one compiled function that takes the hook as its argument, so that
another hook with the same code finds the same program. A hook whose state changes each time runs as plain Python
after ``config.recompile_limit`` programs, without complaint.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from bothways.backends.eager import eager
from bothways.config import config
from bothways.driver.compiled import CompiledFunction, Options
from bothways.errors import Unsupported
from bothways.record.standing import limit_reason
from bothways.runtime.marks import Mark, mark_of


def call_hook(hook: Any, *gradients: Any) -> Any:
    return hook(*gradients)


class HookSite(CompiledFunction):
    """One place where hooks are registered; calling it makes the hook that is registered instead."""

    def __init__(self) -> None:
        from bothways.capture.capture import capture
        from bothways.capture.render import inner_names

        own = types.FunctionType(call_hook.__code__, call_hook.__globals__, "hook")
        own.__module__, own.__qualname__ = __name__, "hook"
        super().__init__(own, Options(eager, "eager", fullgraph=True), capture, inner_names)
        self.function = self.take()

    def __call__(self, hook: Any) -> Any:
        return hook if mark_of(hook) is Mark.DISABLED else CompiledHook(self, hook)

    def _give_up(self, unsupported: Unsupported) -> None:
        if unsupported.break_.code == "torch_mode":  # whoever runs the backward has a say, too
            self._note_break(unsupported.break_)
        else:
            super()._give_up(unsupported)

    def _has_room(self, reason: str) -> bool:
        if len(self.dispatcher.programs) < config.recompile_limit:
            return True
        self.dispatcher.stop_capturing(limit_reason(config.recompile_limit, reason))
        return False


class CompiledHook:
    """A hook of the user's that runs compiled."""

    def __init__(self, site: HookSite, hook: Any) -> None:
        self.site, self.hook = site, hook
        if hasattr(hook, "__name__"):  # autograd's errors name the hook
            self.__name__ = hook.__name__

    def __call__(self, *gradients: Any) -> Any:
        if torch.compiler.is_compiling():  # PyTorch's own compiler captures the backward and wants the hook itself
            return self.hook(*gradients)
        return self.site.function(self.hook, *gradients)
