"""What users said about their functions: disabled, allowed in the graph, or giving a constant result.

Marks are kept beside the functions, weakly, so that marking a function neither changes it nor keeps it alive.
"""

from __future__ import annotations

import enum
import weakref
from typing import Any


class Mark(enum.Enum):
    """How capture treats a call of the function."""

    DISABLED = "disabled"
    IN_GRAPH = "in graph"
    CONSTANT_RESULT = "constant result"
    GRAPH_BREAK = "graph break"
    IS_COMPILING = "is compiling"
    STATIC_SIZES = "static sizes"


_marks: weakref.WeakKeyDictionary[Any, Mark] = weakref.WeakKeyDictionary()


def mark(function: Any, kind: Mark) -> None:
    _marks[function] = kind


def unmark(function: Any) -> None:
    _marks.pop(function, None)


def mark_of(function: Any) -> Mark | None:
    try:
        return _marks.get(function)
    except TypeError:  # not hashable or not weakly referable, so it cannot have been marked
        return None
