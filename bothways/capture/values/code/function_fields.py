"""What CPython keeps of a function outside of its ``__dict__``: the fields that this version has, and the docstring."""

from __future__ import annotations

import sys
import types

FIELDS = frozenset(
    "__name__ __qualname__ __doc__ __module__ __code__ __defaults__ __kwdefaults__ __annotations__ __closure__".split()
)
if sys.version_info >= (3, 12):
    FIELDS |= {"__type_params__"}
if sys.version_info >= (3, 14):
    FIELDS |= {"__annotate__"}

AS_VALUES = 1  # what ``__annotate__`` is called with for the values themselves: annotationlib.Format.VALUE


def documentation(code: types.CodeType) -> str | None:
    """The docstring of functions of a code, as Python itself finds it there."""
    cells = tuple(types.CellType() for _ in code.co_freevars)
    return types.FunctionType(code, {}, None, None, cells).__doc__
