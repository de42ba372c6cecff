"""PyTorch's doors to whole-backward capture, carried out by ours."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from bothways.api.dropin.changes import Addition, Change
from bothways.api.modules import wrapped_calls
from bothways.backward import capturing


def enable(compiler_fn: Callable[..., Any], dynamic: bool = True, ignore_active_disable_ctx: bool = True) -> Any:
    """``torch._dynamo.compiled_autograd._enable``, and ``enable`` in older versions."""
    return capturing.capture(compiler_fn, dynamic=bool(dynamic))


def add_older_name(module: ModuleType) -> Iterator[Change]:
    """``enable`` is what programs called it before it got an underscore."""
    yield Addition(module, "enable", enable)


def disable() -> Any:
    """``torch._dynamo.compiled_autograd._disable``."""
    return capturing.capture(None)


def reset() -> None:
    """``torch._dynamo.compiled_autograd.reset``."""
    capturing.reset()


def is_on() -> bool:
    """Whether the configuration says that what is compiled now captures the backwards it calls for."""
    config = sys.modules.get("torch._dynamo.config")
    return bool(getattr(config, "compiled_autograd", False))


def capturing_backwards(decorate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator whose functions have the backwards they call for compiled as they are themselves."""

    capture = capturing.capture(decorate, dynamic=True)

    def decorate_both(target: Any) -> Any:
        compiled = decorate(target)
        if isinstance(target, torch.nn.Module):
            return wrapped_calls(compiled, capture)
        return compiled if isinstance(target, type) else functools.wraps(target)(capture(compiled))

    return decorate_both
