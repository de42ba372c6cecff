"""Python stand-ins for standard-library functions written in C; the interpreter inlines them instead."""

from __future__ import annotations

from typing import Any

from bothways.capture.standins import (
    combinatorics,
    contexts,
    copying,
    functional,
    iteration,
    jacobians,
    mapping,
    optimizers,
    ordering,
    transforms,
)

# The original -> a function or class in plain Python that does the same.
STANDINS: dict[Any, Any] = {
    **combinatorics.STANDINS,
    **contexts.STANDINS,
    **copying.STANDINS,
    **functional.STANDINS,
    **iteration.STANDINS,
    **jacobians.STANDINS,
    **mapping.STANDINS,
    **optimizers.STANDINS,
    **ordering.STANDINS,
    **transforms.STANDINS,
}


def find(obj: object) -> Any:
    """The stand-in of a callable, or None."""
    try:
        return STANDINS.get(obj)
    except TypeError:
        return None
