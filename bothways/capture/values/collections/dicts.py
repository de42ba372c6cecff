"""Dictionaries: ``dict``, ``OrderedDict`` and ``defaultdict``.

Entries are held by the keys' hash keys, in Python's own order. An external dictionary guards the presence or
absence of the keys the program asked for, and all its keys only when their number or order matters.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from bothways.capture.guards.sources import Attr, DictGet, InjectedItem, Item, Source
from bothways.capture.values.collections import keys as key_values
from bothways.capture.values.collections.sequences import class_text, content, length_of, length_since, unchanged
from bothways.capture.values.core import linked, protocols, wording
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import call_from_table, is_none, none, reject_attribute
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.writing.emit import stores

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter


AS_KEY = "a dict key"  # what something without a hash cannot be


@dataclass
class DictEntry:
    """One key and its value."""

    key: Value
    value: Value


class DictValue(Value):
    """A dictionary; ``base`` is the built-in type to go through when the object's class is a subclass."""

    base: type | None = None
    tracer: Tracer | None = None
    # For a look at the attributes of an object: how to look again, and at whose.
    shown_by: Callable[[Tracer], DictValue] | None = None
    shown_of: Value | None = None
    _printing = False

    def __init__(
        self, kind: type = dict, default_factory: Value | None = None, source: Source | None = None
    ) -> None:
        self.kind = kind
        self.default_factory = default_factory
        self.source = source
        self.entries: dict[Hashable, DictEntry] = {}
        self.version = 0  # counts changes of the keys, for iterators
        # What an external dictionary held, which of its keys the program decided itself, and what is guarded.
        self.original: dict[Hashable, Value] = {}
        self._raw_keys: list[object] = []
        self._decided: set[Hashable] = set()
        self._removed: dict[Hashable, Value] = {}
        self._presence_known: set[Hashable] = set()
        self._keys_known = True
        self._rewritten = False
        self.attrs: dict[str, Value] = {}  # what an ordered dictionary made inside was given

    @classmethod
    def from_pairs(cls, tracer: Tracer, pairs: Iterable[tuple[Value, Value]], kind: type = dict) -> DictValue:
        value = cls(kind)
        for key, item in pairs:
            value.set_item(tracer, key, item)
        return value

    @classmethod
    def external(cls, tracer: Tracer, obj: Any, source: Source) -> DictValue:
        tracer.guard("type({s0}) is {c0}", source, type(obj))
        builtin = next((k for k in (OrderedDict, defaultdict) if isinstance(obj, k)), dict)
        value = cls(builtin, source=source)
        value.tracer = tracer
        if type(obj) in (dict, OrderedDict, defaultdict):
            tracer.remember(obj, value)
        elif isinstance(obj, dict):
            value.base = builtin
        if isinstance(obj, defaultdict):
            value.default_factory = tracer.wrap(obj.default_factory, Attr(source, "default_factory"))
        value._raw_keys = list(builtin.keys(obj) if isinstance(obj, dict) else obj)
        for raw in value._raw_keys:
            key = key_values.known_key(tracer, raw)
            held = dict.__getitem__(obj, raw) if isinstance(obj, dict) else obj[raw]
            item = tracer.wrap(held, value._item_source(tracer, raw))
            key_hash = key.hash_key(tracer)
            value.entries[key_hash] = DictEntry(key, item)
            value.original[key_hash] = item
        value._keys_known = False
        return value

    def _item_source(self, tracer: Tracer, key: object) -> Source:
        assert self.source is not None
        literal = key_values.is_literal(key)
        if self.base is None and self.kind is not defaultdict:
            return Item(self.source, key) if literal else InjectedItem(self.source, key_values.injected(tracer, key))
        # Subscripting would make the entry, or run user code, when the key is missing.
        return DictGet(self.source, key if literal else key_values.injected(tracer, key))

    # What the object is.

    def python_type(self) -> type:
        return self.kind

    def constant(self) -> Any:
        if self.kind is defaultdict:
            raise NotConstant(self.describe())
        self.depend_on_keys()
        return self.kind(
            (entry.key.realize().constant(), entry.value.realize().constant())
            for entry in self.entries.values()
        )

    def constant_items(self, tracer: Tracer) -> list[tuple[Any, Value]]:
        """The items with their keys as Python objects."""
        self.depend_on_keys()
        return [(protocols.as_constant(tracer, entry.key), entry.value) for entry in self.entries.values()]

    def hash_key(self, tracer: Tracer) -> Hashable:
        tracer.throw(TypeError, f"unhashable type: {wording.name_in_c(self.kind)!r}")

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "default_factory" and self.kind is defaultdict:
            return self.default_factory or none()
        if self.kind is OrderedDict and not hasattr(OrderedDict, name):
            if name in self.attrs:
                return self.attrs[name]
            held = getattr(tracer.object_of(self), "__dict__", {}) if self.source is not None else {}
            if name in held:
                return tracer.member(held[name], Attr(cast(Source, self.source), name), "hasattr({s0}, {c0})")
            if self.source is not None:
                tracer.guard("{c0} not in {s0}.__dict__", self.source, name)
        return linked.class_attribute(tracer, self, name)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if self.kind is dict:
            reject_attribute(tracer, self, name)
        if self.kind is OrderedDict and self.source is None and not hasattr(OrderedDict, name):
            self.attrs[name] = value
            return
        if name != "default_factory" or self.kind is not defaultdict or self.source is not None:
            super().set_attr(tracer, name, value)
        self.default_factory = value

    # Guards.

    def depend_on_keys(self) -> None:
        """Rely on which keys there are and in what order."""
        if self._keys_known:
            return
        self._keys_known = True
        assert self.tracer is not None and self.source is not None
        listed = "tuple({c1}.keys({s0}))" if self.base is not None else "tuple({s0})"
        through = (self.base,) if self.base is not None else ()
        keys = tuple(self._raw_keys)
        if not keys and self.base is None:
            self.tracer.guard("not {s0}", self.source)
        elif all(map(key_values.is_compared, keys)):
            self.tracer.guard(f"{listed} == {{c0}}", self.source, keys, *through)
            if any(type(key) is not str for key in keys):  # 1, 1.0 and True are equal keys
                kinds = tuple(map(type, keys))
                self.tracer.guard(f"tuple(map(type, {listed})) == {{c0}}", self.source, kinds, *through)
        else:
            identities = tuple(map(id, keys))
            self.tracer.guard(f"tuple(map(id, {listed})) == {{c0}}", self.source, identities, *through)

    def _depend_on_presence(self, tracer: Tracer, key: Value, key_hash: Hashable) -> None:
        """Rely on whether the object held the key when the call began."""
        if self._keys_known or key_hash in self._presence_known:
            return
        self._presence_known.add(key_hash)
        assert self.source is not None
        try:
            constant = key.realize().constant()
        except NotConstant:
            self.depend_on_keys()
            return
        word = "in" if key_hash in self.original else "not in"
        if self.base is not None:
            negation = "not " if word == "not in" else ""
            tracer.guard(negation + "{c0}.__contains__({s0}, {c1})", self.source, self.base, constant)
        else:
            tracer.guard(f"{{c0}} {word} {{s0}}", self.source, constant)

    # Entries.

    def look_up(self, tracer: Tracer, key: Value) -> DictEntry | None:
        key = key.realize()
        if isinstance(key, NumberValue) and self._stays(tracer):
            equal = key_values.equal_to(tracer, key, [entry.key for entry in self.known_entries()])
            if equal is None:
                return None
            key = equal
        key_hash = wording.hashed(tracer, key, AS_KEY)
        if not self._rewritten and key_hash not in self._decided:
            self._depend_on_presence(tracer, key, key_hash)
        return self.entries.get(key_hash)

    def _stays(self, tracer: Tracer) -> bool:
        """Whether the keys are the same at all calls, and such that a number can be compared with each."""
        if not key_values.are_compared([entry.key for entry in self.entries.values()]):
            return False
        if self._keys_known:
            return True
        source = length_of(cast(Source, self.source), self.base)
        return not tracer.symbols.length_changes(len(self.original), source)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        key = key.realize()
        key_hash = key.hash_key(tracer) if self.kind is OrderedDict else wording.hashed(tracer, key, AS_KEY)
        self.note_change(tracer)
        self._decided.add(key_hash)
        entry = self.entries.get(key_hash)
        if entry is None:
            self.version += 1
            self.entries[key_hash] = DictEntry(key, value)
        else:
            self.entries[key_hash] = DictEntry(entry.key, value)

    def remove(self, tracer: Tracer, key: Value) -> Value | None:
        """Take an entry out and give its value; None when there is none."""
        key = key.realize()
        key_hash = wording.hashed(tracer, key, AS_KEY)
        if not self._rewritten:
            self._depend_on_presence(tracer, key, key_hash)
        entry = self.entries.pop(key_hash, None)
        if entry is None:
            return None
        self.note_change(tracer)
        self.version += 1
        self._decided.add(key_hash)
        if key_hash in self.original:
            self._removed[key_hash] = entry.key
        return entry.value

    def clear(self, tracer: Tracer) -> None:
        self.note_change(tracer)
        self.version += 1
        self.entries.clear()
        self._rewritten = self._keys_known = True

    def known_entries(self) -> list[DictEntry]:
        self.depend_on_keys()
        return list(self.entries.values())

    # Slots.

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        entry = self.look_up(tracer, key)
        return entry.value if entry is not None else self.missing(tracer, key)

    def missing(self, tracer: Tracer, key: Value) -> Value:
        """What ``__missing__`` does."""
        if is_none(self.default_factory):
            tracer.throw(KeyError, key_values.exception_argument(key))
        assert self.default_factory is not None
        value = protocols.call(tracer, self.default_factory, [])
        self.set_item(tracer, key, value)
        return value

    def del_item(self, tracer: Tracer, key: Value) -> None:
        if self.remove(tracer, key) is None:
            tracer.throw(KeyError, key_values.exception_argument(key))

    def iterate(self, tracer: Tracer) -> Value:
        return linked.DictIterator(self, "keys")

    def length(self, tracer: Tracer) -> int:
        return len(self.known_entries())

    def length_value(self, tracer: Tracer) -> Value | None:
        is_open = self.source is not None and not self._keys_known and not self._rewritten
        source = length_of(cast(Source, self.source), self.base) if is_open else None
        length = length_since(tracer, source, len(self.original), len(self.entries) - len(self.original))
        for key in () if length is None else self._decided & self.entries.keys():  # one that was there adds nothing
            self._depend_on_presence(tracer, self.entries[key].key, key)
        return length

    def truth(self, tracer: Tracer) -> bool:
        if self._keys_known or self._rewritten or self._removed or not self.original or self.base is not None:
            return bool(self.known_entries())
        tracer.guard("len({s0}) > {c0}", cast(Source, self.source), 0)
        return True

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return self.look_up(tracer, item) is not None

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol == "|=":
            self.merge_pairs(tracer, other)
            return self
        operand = content(other)
        if not isinstance(operand, DictValue):
            return None
        if op.symbol in ("==", "!="):
            return ConstantValue(self._equals(tracer, operand) == (op.symbol == "=="))
        if op.symbol == "|":
            left, right = (operand, self) if reflected else (self, operand)
            result = left.copy()
            result.merge(tracer, right)
            return result
        return None

    def _equals(self, tracer: Tracer, other: DictValue) -> bool:
        mine, theirs = self.known_entries(), other.known_entries()
        if len(mine) != len(theirs):
            return False
        if self.kind is other.kind is OrderedDict and list(self.entries) != list(other.entries):
            return False
        for key_hash, entry in list(self.entries.items()):
            match = other.entries.get(key_hash)
            if match is None or not protocols.equal(tracer, entry.value, match.value):
                return False
        return True

    def text(self, tracer: Tracer, conversion: str) -> str:
        if self._printing:
            return "..." if self.kind is OrderedDict else "{...}"
        self._printing = True
        try:
            return self._text(tracer)
        finally:
            self._printing = False

    def _text(self, tracer: Tracer) -> str:
        pairs = [
            (protocols.text(tracer, entry.key, "repr"), protocols.text(tracer, entry.value, "repr"))
            for entry in self.known_entries()
        ]
        plain = "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        if self.kind is OrderedDict:
            listed = "[" + ", ".join(f"({key}, {value})" for key, value in pairs) + "]"
            return f"OrderedDict({(plain if sys.version_info >= (3, 12) else listed) if pairs else ''})"
        if self.kind is defaultdict:
            return f"defaultdict({protocols.text(tracer, self.default_factory or none(), 'repr')}, {plain})"
        return plain

    # Copies and merges.

    def copy(self) -> DictValue:
        result = DictValue(self.kind, self.default_factory)
        self.depend_on_keys()
        result.entries = {key_hash: DictEntry(e.key, e.value) for key_hash, e in self.entries.items()}
        return result

    def merge(self, tracer: Tracer, mapping: Value) -> None:
        """Take over the entries of a mapping, as ``{**mapping}`` does."""
        for key, value in mapping_pairs(tracer, mapping):
            self.set_item(tracer, key, value)

    def merge_pairs(self, tracer: Tracer, other: Value) -> None:
        """Take over a mapping or an iterable of pairs, as ``dict`` and ``update`` do."""
        if isinstance(content(other), DictValue) or protocols.try_get_attr(tracer, other, "keys") is not None:
            self.merge(tracer, other)
            return
        for number, pair in enumerate(protocols.elements(tracer, protocols.iterate(tracer, other))):
            if not hasattr(pair.realize().python_type(), "__iter__"):
                tracer.throw(TypeError, wording.no_pair(number))
            items = protocols.unpack(tracer, pair)
            if len(items) != 2:
                message = (
                    f"dictionary update sequence element #{number} has length {len(items)}; 2 is required"
                )
                tracer.throw(ValueError, message)
            self.set_item(tracer, *items)

    # Methods.

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return call_from_table(tracer, self, linked.DICT_METHODS[self.kind], self.kind(), name, args, kwargs)

    # What is left of it.

    def _changes(self) -> Iterator[tuple[Hashable, DictEntry]]:
        """The entries to write, in the order that leaves the keys in Python's own order."""
        kept, added = [], []
        for key_hash, entry in self.entries.items():
            if self._rewritten or key_hash in self._removed or key_hash not in self.original:
                added.append((key_hash, entry))
            elif not unchanged(self.original[key_hash], entry.value):
                kept.append((key_hash, entry))
        yield from kept
        yield from added

    def rewrite(self, tracer: Tracer) -> None:
        """Write all entries anew at the end: their order changed in a way no single entry tells."""
        self.depend_on_keys()
        self.note_change(tracer)
        self.version += 1
        self._rewritten = True

    def parts(self) -> Iterable[Value]:
        entries = self.entries.values() if self.source is None else [entry for _, entry in self._changes()]
        for entry in entries:
            yield entry.key
            yield entry.value
        if self.source is not None and not self._rewritten:
            yield from self._removed.values()
        if self.source is None and self.default_factory is not None:
            yield self.default_factory
        yield from self.attrs.values()

    @property
    def two_phase(self) -> bool:  # type: ignore[override]
        return bool(self.attrs)

    def rebuild(self, emitter: Emitter) -> str:
        plain = self._display(emitter, self.entries.values())
        return plain if self.kind is dict else self._wrapped(emitter, plain if self.entries else "")

    def rebuild_empty(self, emitter: Emitter) -> str:
        return "{}" if self.kind is dict else self._wrapped(emitter, "")

    def _wrapped(self, emitter: Emitter, content: str) -> str:
        factory = emitter.rebuild(self.default_factory or none()) if self.kind is defaultdict else ""
        arguments = ", ".join(filter(None, (factory, content)))
        return f"{emitter.inject(self.kind, self.kind.__name__)}({arguments})"

    def fill(self, emitter: Emitter, name: str) -> None:
        for entry in self.entries.values():
            emitter.build(f"{name}[{emitter.rebuild(entry.key)}] = {emitter.rebuild(entry.value)}")
        for statement in stores(emitter, name, self.attrs):
            emitter.build(statement)

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        name = emitter.read(self.source)
        if self._rewritten:
            self._effect(emitter, f"{name}.clear()", "clear", name)
        else:
            for key in self._removed.values():
                text = emitter.rebuild(key)
                self._effect(emitter, f"del {name}[{text}]", "__delitem__", name, text)
        for _, entry in self._changes():
            key_text, value_text = emitter.rebuild(entry.key), emitter.rebuild(entry.value)
            self._effect(
                emitter, f"{name}[{key_text}] = {value_text}", "__setitem__", name, key_text, value_text
            )

    def _effect(self, emitter: Emitter, plain: str, method: str, *arguments: str) -> None:
        if self.base is None:
            emitter.effect(plain)
        else:
            emitter.effect(f"{class_text(emitter.tracer, self.base)}.{method}({', '.join(arguments)})")

    def _display(self, emitter: Emitter, entries: Iterable[DictEntry]) -> str:
        pairs = [f"{emitter.rebuild(entry.key)}: {emitter.rebuild(entry.value)}" for entry in entries]
        return "{" + ", ".join(pairs) + "}"


def mapping_pairs(tracer: Tracer, mapping: Value) -> Iterator[tuple[Value, Value]]:
    """The items of a mapping: of a dictionary directly, of anything else through ``keys`` and subscripts."""
    known = content(mapping)
    if isinstance(known, DictValue):
        yield from [(entry.key, entry.value) for entry in known.known_entries()]
        return
    keys = protocols.try_get_attr(tracer, mapping, "keys")
    if keys is None:
        tracer.throw(TypeError, f"{wording.name_in_c(mapping.realize().python_type())!r} object is not a mapping")
    for key in protocols.unpack(tracer, protocols.call(tracer, keys, [])):
        yield key, mapping.realize().get_item(tracer, key.realize())
