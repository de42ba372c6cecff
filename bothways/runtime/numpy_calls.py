"""Calls of NumPy's functions by programs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

if importlib.util.find_spec("numpy") is not None:
    import numpy


def without_warning(function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives of numbers; a FloatingPointError where NumPy would warn. Programs ask more than once."""
    with numpy.errstate(all="raise"):
        return function(*args)
