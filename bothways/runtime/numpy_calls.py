"""Calls of NumPy's functions by programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import numpy
except ImportError:
    pass


def without_warning(function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives of numbers; a FloatingPointError where NumPy would warn. Programs ask more than once."""
    with numpy.errstate(all="raise"):
        return function(*args)
