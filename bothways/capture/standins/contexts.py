"""Context managers used as decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def decorate(context: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return decorated
