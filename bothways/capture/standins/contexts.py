"""Context managers used as decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
