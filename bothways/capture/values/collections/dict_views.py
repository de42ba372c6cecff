"""What a dictionary shows of itself: live views of its keys, values and items, their iterators, and proxies.

A view holds the dictionary and reads it when asked, so a change in between is seen as in Python.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from bothways.capture.guards.sources import Source
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.dicts import DictEntry, DictValue
from bothways.capture.values.collections.sets import SetValue, compare_sets
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import Method, call_from_table
from bothways.runtime import iterators

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter


def _element(entry: DictEntry, which: str) -> Value:
    if which == "items":
        return TupleValue([entry.key, entry.value])
    return entry.key if which == "keys" else entry.value


class DictView(Value):
    """``keys()``, ``values()`` or ``items()`` of a dictionary."""

    def __init__(self, owner: DictValue, which: str) -> None:
        self.owner, self.which = owner, which

    def _sample(self) -> Any:
        return getattr(self.owner.kind(), self.which)()

    def python_type(self) -> type:
        return type(self._sample())

    def items(self) -> list[Value]:
        return [_element(entry, self.which) for entry in self.owner.known_entries()]

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return ProxyValue(self.owner) if name == "mapping" else linked.class_attribute(tracer, self, name)

    def iterate(self, tracer: Tracer) -> Value:
        return DictIterator(self._fresh(tracer), self.which)

    def _fresh(self, tracer: Tracer) -> DictValue:
        """The dictionary as it is now, where another object tells what is in it."""
        return self.owner if self.owner.shown_by is None else self.owner.shown_by(tracer)

    def length(self, tracer: Tracer) -> int:
        return self.owner.length(tracer)

    def truth(self, tracer: Tracer) -> bool:
        return self.owner.truth(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if self.which == "values":
            return super().contains(tracer, item)
        if self.which == "keys":
            return self.owner.contains(tracer, item)
        pair = item.realize()
        if not isinstance(pair, TupleValue) or len(pair.known_items()) != 2:
            return False
        entry = self.owner.look_up(tracer, pair.items[0])
        return entry is not None and protocols.equal(tracer, entry.value, pair.items[1])

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if self.which == "values":
            return None
        left, right = (other, self) if reflected else (self, other)
        if op.symbol in protocols.COMPARE:
            if not isinstance(other, (DictView, SetValue)):
                return None
            return compare_sets(tracer, op, as_set(tracer, left), as_set(tracer, right))
        if op.symbol not in ("&", "|", "-", "^"):
            return None
        return as_set(tracer, left).combine(tracer, op.symbol, as_set(tracer, right))

    def text(self, tracer: Tracer, conversion: str) -> str:
        reprs = ", ".join(protocols.text(tracer, item, "repr") for item in self.items())
        return f"{self.python_type().__name__}([{reprs}])"

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return call_from_table(tracer, self, self.METHODS, self._sample(), name, args, kwargs)

    def _isdisjoint(self, tracer: Tracer, other: Value) -> Value:
        return ConstantValue(
            not any(self.contains(tracer, x.realize()) for x in protocols.unpack(tracer, other))
        )

    def _reversed(self, tracer: Tracer) -> Value:
        return DictIterator(self._fresh(tracer), self.which, backwards=True)

    METHODS: ClassVar[dict[str, Method]] = {"isdisjoint": _isdisjoint, "__reversed__": _reversed}

    def parts(self) -> Iterable[Value]:
        return (self.owner,)

    def rebuild(self, emitter: Emitter) -> str:
        return f"{emitter.rebuild(self.owner)}.{self.which}()"


def as_set(tracer: Tracer, value: Value) -> SetValue:
    """Any iterable as a set to compute with."""
    value = value.realize()
    if isinstance(value, SetValue):
        return value
    return SetValue.of(tracer, protocols.unpack(tracer, value), set)


class DictIterator(Value):
    """An iterator over a dictionary, which notices when the keys change under it."""

    def __init__(self, owner: DictValue, which: str, backwards: bool = False) -> None:
        self.which, self.backwards = which, backwards
        self._owner: DictValue | None = owner
        view = getattr(owner.kind(), which)()
        self._kind = type(reversed(view) if backwards else iter(view))
        entries = owner.known_entries()
        self._keys: list[Hashable] = list(owner.entries)[:: -1 if backwards else 1]
        self._size, self._version, self._position = len(entries), owner.version, 0

    def python_type(self) -> type:
        return self._kind

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return linked.class_attribute(tracer, self, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return call_from_table(tracer, self, {}, iter({}), name, args, kwargs)

    def iterate(self, tracer: Tracer) -> Value:
        return self

    def next(self, tracer: Tracer) -> Value:
        owner = self._owner
        if owner is None:
            tracer.throw(StopIteration)
        if owner.shown_by is not None:
            owner = owner.shown_by(tracer)
        if self._is_changed(tracer, owner):
            what = "OrderedDict mutated" if owner.kind is OrderedDict else "dictionary changed size"
            tracer.throw(RuntimeError, f"{what} during iteration")
        if self._position >= len(self._keys):
            self._owner = None
            tracer.throw(StopIteration)
        self._position += 1
        return _element(owner.entries[self._keys[self._position - 1]], self.which)

    def _is_changed(self, tracer: Tracer, owner: DictValue) -> bool:
        if owner.shown_by is not None:
            is_changed = list(owner.entries)[:: -1 if self.backwards else 1] != self._keys
        else:
            is_changed = owner.version != self._version
        if is_changed and owner.kind is not OrderedDict and len(owner.entries) == self._size:
            tracer.stop("call_unknown", "the keys of a dictionary were exchanged during iteration")
        return is_changed

    # After the call.

    def parts(self) -> Iterable[Value]:
        if self._owner is None:
            return ()
        return (self._owner.shown_of or self._owner.holder or self._owner,)

    def rebuild(self, emitter: Emitter) -> str:
        owner = self._owner
        which = f"{self.which!r}, 0{', True' if self.backwards else ''}"
        over = emitter.inject(iterators.over_dict, "over_dict")
        if owner is None:
            return f"{over}({emitter.inject(self._plain_kind(), 'kind')}(), {which})"
        now = owner if owner.shown_by is None else owner.shown_by(emitter.tracer)
        if self._is_changed(emitter.tracer, now):
            changed = emitter.inject(iterators.over_changed, "over_changed")
            return f"{changed}({over}, {emitter.inject(self._plain_kind(), 'kind')}, {which})"
        which = f"{self.which!r}, {self._position}{', True' if self.backwards else ''}"
        container = f"{emitter.settled(owner.shown_of)}.__dict__" if owner.shown_of else emitter.settled(owner)
        return emitter.name(self, f"{over}({container}, {which})")

    def _plain_kind(self) -> type:
        return OrderedDict if self._owner is not None and self._owner.kind is OrderedDict else dict


class ProxyValue(Value):
    """A read-only view of a dictionary (``types.MappingProxyType``)."""

    READS = frozenset("get keys values items copy __reversed__".split())

    def __init__(self, owner: DictValue, source: Source | None = None) -> None:
        self.owner, self.source = owner, source

    @classmethod
    def external(cls, tracer: Tracer, obj: MappingProxyType[Any, Any], source: Source) -> ProxyValue:
        value = cls(DictValue.external(tracer, obj, source), source)
        tracer.remember(obj, value)
        return value

    def python_type(self) -> type:
        return MappingProxyType

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return linked.class_attribute(tracer, self, name)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return self.owner.get_item(tracer, key)

    def iterate(self, tracer: Tracer) -> Value:
        return self.owner.iterate(tracer)

    def length(self, tracer: Tracer) -> int:
        return self.owner.length(tracer)

    def truth(self, tracer: Tracer) -> bool:
        return self.owner.truth(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return self.owner.contains(tracer, item)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        operand = other.owner if isinstance(other, ProxyValue) else other
        return self.owner.binary(tracer, op, operand, reflected)

    def text(self, tracer: Tracer, conversion: str) -> str:
        inner = self.owner.text(tracer, conversion)
        return inner if conversion == "str" else f"mappingproxy({inner})"

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name in self.READS:
            return self.owner.call_method(tracer, name, args, kwargs)
        return call_from_table(tracer, self, {}, MappingProxyType({}), name, args, kwargs)

    def parts(self) -> Iterable[Value]:
        return (self.owner,)

    def rebuild(self, emitter: Emitter) -> str:
        return f"{emitter.inject(MappingProxyType, 'MappingProxyType')}({emitter.rebuild(self.owner)})"
