"""Keys of external dictionaries and elements of external sets: their Values, and how to reach an entry.

Plain literals stand for themselves; everything else (enum members, classes, functions, tensors) is kept in
the program's namespace, so that a guard or an item access can name it.
"""

from __future__ import annotations

import math
import types
from typing import TYPE_CHECKING

from bothways.capture.guards.sources import Injected
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue, constant_value, is_constant_type

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

_LITERAL_TYPES = frozenset((str, int, bool, bytes, type(None)))
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
