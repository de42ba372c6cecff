"""What Python says of what does not work, where its versions use different words; nothing else may differ by them."""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING

from bothways.capture.guards import policy
from bothways.capture.values.core import linked
from bothways.capture.values.core.raised import Raised

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.base import Value

SINCE_313 = sys.version_info >= (3, 13)
SINCE_314 = sys.version_info >= (3, 14)

NO_PLACE = " and no __dict__ for setting new attributes" if SINCE_313 else ""
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


def empty_slot(kind: type, name: str) -> str:
    """What is said of a slot that has nothing."""
    module = kind.__module__
    if not SINCE_313 or module in ("builtins", "__main__"):
        return f"{name_in_c(kind)!r} object has no attribute {name!r}"
    return f"'{module}.{kind.__qualname__}' object has no attribute {name!r}"


def hashed(tracer: Tracer, key: Value, role: str) -> Hashable:
    """The hash of a key; what has none is complained about as what it should have been."""
    try:
        return key.hash_key(tracer)
    except Raised as error:
        if not SINCE_314 or error.value.python_type() is not TypeError:
            raise
        reason = linked.protocols.text(tracer, error.value)
    tracer.throw(TypeError, f"cannot use {name_in_c(key.python_type())!r} as {role} ({reason})")


_JOINED = (list, tuple, str, collections.deque)


def cannot_operate(symbol: str, left: type, right: type) -> str:
    """What Python says of two operands that know nothing of each other; sequences have words of their own."""
    first, second = name_in_c(left), name_in_c(right)
    word = next((kind.__name__ for kind in _JOINED if issubclass(left, kind)), None)
    if symbol in ("+", "+=") and word is not None:
        return f'can only concatenate {word} (not "{second}") to {word}'
    if symbol in ("*", "*=") and (word is not None or issubclass(right, _JOINED)):
        return f"can't multiply sequence by non-int of type {(first if word is None else second)!r}"
    shown = "** or pow()" if symbol == "**" else symbol  # also in place: "**="
    return f"unsupported operand type(s) for {shown}: {first!r} and {second!r}"


def name_in_c(kind: type) -> str:
    """How Python calls a class in its complaints: the names of some that are written in C begin with their module."""
    return _told_by_library(kind) if policy.is_library_module(kind.__module__) else _told(kind)


def _told(kind: type) -> str:
    """The name, from what Python says about making an object of this class as one of another."""
    other = str if issubclass(kind, int) else int
    try:
        other.__new__(kind)
    except TypeError as error:
        return str(error).removesuffix(f" is not a subtype of {other.__name__}").rpartition("): ")[2]
    return kind.__name__


_told_by_library = functools.cache(_told)
