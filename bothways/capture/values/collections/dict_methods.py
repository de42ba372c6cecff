"""The methods of dictionaries, as a table per type: rows shared by all, and what the two variants add."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING

from bothways.capture.values.collections import keys as key_values
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.dict_views import DictIterator, DictView
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import Method, none

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def _view(which: str) -> Method:
    def method(owner: DictValue, tracer: Tracer) -> Value:
        return DictView(owner, which)

    return method


def _get(owner: DictValue, tracer: Tracer, key: Value, default: Value | None = None) -> Value:
    entry = owner.look_up(tracer, key)
    return entry.value if entry is not None else default or none()


def _pop(owner: DictValue, tracer: Tracer, key: Value, default: Value | None = None) -> Value:
    value = owner.remove(tracer, key)
    if value is not None:
        return value
    if default is None:
        tracer.throw(KeyError, key_values.exception_argument(key))
    return default


def _popitem(owner: DictValue, tracer: Tracer) -> Value:
    return _popped(owner, tracer, -1)


def _popitem_ordered(owner: DictValue, tracer: Tracer, last: Value | None = None) -> Value:
    return _popped(owner, tracer, -1 if last is None or protocols.truth(tracer, last) else 0)


def _popped(owner: DictValue, tracer: Tracer, position: int) -> Value:
    entries = owner.known_entries()
    if not entries:
        tracer.throw(
            KeyError,
            "popitem(): dictionary is empty" if owner.kind is not OrderedDict else "dictionary is empty",
        )
    entry = entries[position]
    owner.remove(tracer, entry.key)
    return TupleValue([entry.key, entry.value])


def _setdefault(owner: DictValue, tracer: Tracer, key: Value, default: Value | None = None) -> Value:
    entry = owner.look_up(tracer, key)
    if entry is not None:
        return entry.value
    owner.set_item(tracer, key, default or none())
    return default or none()


def _update(owner: DictValue, tracer: Tracer, *others: Value, **items: Value) -> Value:
    if len(others) > 1:
        tracer.throw(TypeError, f"update expected at most 1 argument, got {len(others)}")
    for other in others:
        owner.merge_pairs(tracer, other)
    for name, value in items.items():
        owner.set_item(tracer, ConstantValue(name), value)
    return none()


def _init_default(owner: DictValue, tracer: Tracer, *args: Value, **items: Value) -> Value:
    if args:
        owner.default_factory = args[0]
    return _update(owner, tracer, *args[1:], **items)


def _clear(owner: DictValue, tracer: Tracer) -> Value:
    owner.clear(tracer)
    return none()


def _copy(owner: DictValue, tracer: Tracer) -> Value:
    return owner.copy()


def _reversed(owner: DictValue, tracer: Tracer) -> Value:
    return DictIterator(owner, "keys", backwards=True)


def _missing(owner: DictValue, tracer: Tracer, key: Value) -> Value:
    return owner.missing(tracer, key)


def _move_to_end(owner: DictValue, tracer: Tracer, key: Value, last: Value | None = None) -> Value:
    at_end = last is None or protocols.truth(tracer, last)
    value = owner.remove(tracer, key)
    if value is None:
        tracer.throw(KeyError, key_values.exception_argument(key))
    others = list(owner.entries.items())
    owner.set_item(tracer, key, value)
    if not at_end:
        for key_hash, entry in others:
            del owner.entries[key_hash]
            owner.entries[key_hash] = entry
        owner.rewrite(tracer)
    return none()


_SHARED: dict[str, Method] = {
    "keys": _view("keys"),
    "values": _view("values"),
    "items": _view("items"),
    "get": _get,
    "pop": _pop,
    "popitem": _popitem,
    "setdefault": _setdefault,
    "update": _update,
    "clear": _clear,
    "copy": _copy,
    "__copy__": _copy,
    "__init__": _update,
    "__reversed__": _reversed,
}

METHODS: dict[type, dict[str, Method]] = {
    dict: _SHARED,
    OrderedDict: _SHARED | {"popitem": _popitem_ordered, "move_to_end": _move_to_end},
    defaultdict: _SHARED | {"__missing__": _missing, "__init__": _init_default},
}
