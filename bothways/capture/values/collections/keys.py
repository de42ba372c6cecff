"""Keys of external dictionaries and elements of external sets: their Values, and how to reach an entry.

Plain literals stand for themselves; everything else (enum members, classes, functions, tensors) is kept in
the program's namespace, so that a guard or an item access can name it.
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bothways.capture.guards.sources import Injected
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue, constant_value, is_constant_type

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

_LITERAL_TYPES = frozenset((str, int, bool, bytes, type(None)))
MOST_COMPARED = 32
_LIBRARY_TYPES = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


def is_literal(key: object) -> bool:
    """Whether the key's repr is source text for an equal key."""
    kind = type(key)
    if kind is tuple:
        return all(map(is_literal, key))  # type: ignore[call-overload]
    return kind in _LITERAL_TYPES or (kind is float and math.isfinite(key))  # type: ignore[arg-type]


def is_compared(key: object) -> bool:
    """Whether equality with the key decides, and comparing it is safe and cheap."""
    if type(key) in (tuple, frozenset):
        return all(map(is_compared, key))  # type: ignore[call-overload]
    return is_constant_type(type(key)) or isinstance(key, _LIBRARY_TYPES)


def known_key(tracer: Tracer, key: object) -> Value:
    """The Value of a key of an external container, which the container's own guard pins down."""
    if is_constant_type(type(key)):
        return ConstantValue(key)
    if type(key) is tuple:
        return TupleValue([known_key(tracer, item) for item in key])
    if type(key) is frozenset:
        return linked.SetValue.of(tracer, [known_key(tracer, item) for item in key], frozenset)
    if isinstance(key, _LIBRARY_TYPES):
        return constant_value(key, tracer)
    return tracer.look_at(key, injected(tracer, key))


def are_compared(keys: Sequence[Value]) -> bool:
    """Whether a number that changes from call to call can be looked for by comparing it with each key."""
    known = [key.content if isinstance(key, ConstantValue) else key for key in keys]
    return len(keys) <= MOST_COMPARED and all(type(key) in _LITERAL_TYPES or type(key) is float for key in known)


def equal_to(tracer: Tracer, number: Value, keys: Sequence[Value]) -> Value | None:
    """The key that equals a number, None where none does: a guard for each, and no program for each number."""
    for key in keys:
        known = key.realize().constant()
        if isinstance(known, (int, float)):
            counted = int(known) if type(known) is bool else known
            if protocols.equal(tracer, number, ConstantValue(counted)):
                return key
    return None


def injected(tracer: Tracer, key: object) -> Injected:
    label = getattr(key, "__qualname__", None) or f"a {type(key).__name__} key"
    if is_compared(key) or type(key).__weakrefoffset__ == 0:
        return tracer.inject(key, label)
    return tracer.inject_weakly(key, label)


def exception_argument(value: Value) -> object:
    """A key as the argument of the KeyError about it."""
    try:
        return value.realize().constant()
    except NotConstant:
        return value
