"""What a generated function shows of the user's: name, signature, docstring, annotations, attributes."""

from __future__ import annotations

import sys
import types

# What a function carries besides its code, as far as this Python has it.
FACE = ("__defaults__", "__kwdefaults__", "__module__", "__qualname__", "__doc__")
if sys.version_info >= (3, 12):
    FACE += ("__type_params__",)
if sys.version_info >= (3, 14):
    FACE += ("__annotate__",)  # called when they are asked for: the names in them may not be there yet


def has_deferred_annotations(function: types.FunctionType) -> bool:
    return getattr(function, "__annotate__", None) is not None


def copy_face(original: types.FunctionType, target: types.FunctionType) -> None:
    """Make a generated function look like the user's: name, signature, docstring, attributes."""
    for name in FACE:
        setattr(target, name, getattr(original, name))
    if not has_deferred_annotations(original):
        target.__annotations__ = original.__annotations__
    target.__dict__.update(original.__dict__)
    target.__wrapped__ = original  # type: ignore[attr-defined]
