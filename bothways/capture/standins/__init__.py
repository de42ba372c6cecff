"""Python stand-ins for standard-library functions written in C; the interpreter inlines them instead."""

from __future__ import annotations

from typing import Any

STANDINS: dict[Any, Any] = {}


def find(obj: object) -> Any:
    """The stand-in of a callable, or None."""
    try:
        return STANDINS.get(obj)
    except TypeError:
        return None
