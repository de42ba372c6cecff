"""What Python says of what does not work, where its versions use different words; nothing else may differ by them."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING

from bothways.capture.values.core import linked
from bothways.capture.values.core.raised import Raised

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.base import Value

SINCE_314 = sys.version_info >= (3, 14)
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the type has its name without the module

NO_CONTAINER = "is not a container or iterable" if SINCE_314 else "is not iterable"


def not_found(tracer: Tracer, method: str, item: Value) -> str:
    """What ``list.index`` and its like say of an item that is not there."""
    container = method.partition(".")[0]
    if SINCE_314 or container == "tuple":
        return f"{method}(x): x not in {container}"
    return f"{linked.protocols.text(tracer, item, 'repr')} is not in {container}"


def no_pair(number: int) -> str:
    """What ``dict`` says of an element that is no pair."""
    before = f"cannot convert dictionary update sequence element #{number} to a sequence"
    return "object is not iterable" if SINCE_314 else before


def hashed(tracer: Tracer, key: Value, role: str) -> Hashable:
    """The hash of a key; what has none is complained about as what it should have been."""
    try:
        return key.hash_key(tracer)
    except Raised as error:
        if not SINCE_314 or error.value.python_type() is not TypeError:
            raise
        reason = linked.protocols.text(tracer, error.value)
    tracer.throw(TypeError, f"cannot use {_name_in_c(key.python_type())!r} as {role} ({reason})")


def _name_in_c(kind: type) -> str:
    is_short = kind.__flags__ & HEAP_TYPE or kind.__module__ == "builtins"
    return kind.__name__ if is_short else f"{kind.__module__}.{kind.__name__}"
