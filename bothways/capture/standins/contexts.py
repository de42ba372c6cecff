"""Context managers used as decorators, and those that mean nothing to a compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def decorate(context: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return decorated


def decorate_with_factory(make_context: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Each call enters a context of its own, so that the decorated function may call itself."""

    def decorated(*args: Any, **kwargs: Any) -> Any:
        with make_context():
            return function(*args, **kwargs)

    return decorated


class UnnamedRange:
    """``record_function``: a profiler sees a compiled program's kernels, not the ranges of the Python it came from."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args

    def __enter__(self) -> UnnamedRange:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return decorate(self, function)


STANDINS: dict[Any, Any] = {torch.autograd.profiler.record_function: UnnamedRange}
