"""Sets and frozen sets: elements held by their hash keys, combined and iterated in Python's own order.

An external set guards membership of what was asked for, its content when that matters, and its iteration
order only when the program iterates.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from bothways.capture.guards.sources import Source
from bothways.capture.values.collections import keys as key_values
from bothways.capture.values.collections.apart import ToldApart
from bothways.capture.values.collections.iterators import SetIterator
from bothways.capture.values.collections.sequences import content, length_of, length_since
from bothways.capture.values.core import linked, protocols, wording
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import Method, call_from_table, none, reject_attribute
from bothways.capture.values.core.numbers import NumberValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

_METHOD_NAMES = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}
_IN_PLACE = {f"{symbol}=": f"{name}_update" for symbol, name in _METHOD_NAMES.items()} | {"|=": "update"}


class SetValue(Value):
    """A set or a frozenset; ``keys`` is a real set, which orders the hash keys as Python orders elements."""

    base: type | None = None
    tracer: Tracer | None = None
    _printing = False

    def __init__(self, kind: type = set, source: Source | None = None) -> None:
        self.kind = kind
        self.source = source
        self.elements: dict[Hashable, Value] = {}
        self.keys: set[Hashable] = set()
        self.version = 0
        self.original: dict[Hashable, Value] = {}
        self._raw: list[object] = []
        self._presence_known: set[Hashable] = set()
        self._decided: set[Hashable] = set()
        self._content_known = self._order_known = True
        self._told_apart = ToldApart()

    @classmethod
    def of(cls, tracer: Tracer, items: Iterable[Value], kind: type = set) -> SetValue:
        value = cls(kind)
        for item in items:
            value.add_item(tracer, item)
        return value

    @classmethod
    def external(cls, tracer: Tracer, obj: Any, source: Source) -> SetValue:
        tracer.guard("type({s0}) is {c0}", source, type(obj))
        builtin = set if isinstance(obj, set) else frozenset
        value = cls(builtin, source)
        value.tracer = tracer
        if type(obj) is builtin:
            tracer.remember(obj, value)
        else:
            value.base = builtin
        value._raw = list(builtin.__iter__(obj))
        for raw in value._raw:
            element = key_values.known_key(tracer, raw)
            value.elements[element.hash_key(tracer)] = element
        plain = len(value._raw) == len(value.elements) and all(map(operator.is_, value._raw, value.elements))
        value.keys = set(obj) if plain else set(value.elements)
        value.original = dict(value.elements)
        value._content_known = value._order_known = False
        return value

    # What the object is.

    def python_type(self) -> type:
        return self.kind

    def constant(self) -> Any:
        return self.kind(item.realize().constant() for item in self.known_elements())

    def hash_key(self, tracer: Tracer) -> Hashable:
        if self.kind is set:
            tracer.throw(TypeError, "unhashable type: 'set'")
        self.depend_on_content()
        return frozenset(self.keys)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return linked.class_attribute(tracer, self, name)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        reject_attribute(tracer, self, name)

    # Guards.

    def _guard(self, plain: str, through: str, *constants: object) -> None:
        assert self.tracer is not None and self.source is not None
        if self.base is None:
            self.tracer.guard(plain, self.source, *constants)
        else:
            self.tracer.guard(through, self.source, *constants, self.base)

    def depend_on_content(self) -> None:
        """Rely on which elements there are."""
        if self._content_known:
            self._rely_on_own()
            return
        self._content_known = True
        if all(map(key_values.is_compared, self._raw)):
            self._guard("{s0} == {c0}", "{c1}({s0}) == {c0}", frozenset(self._raw))
        else:
            self.depend_on_order()

    def depend_on_order(self) -> None:
        """Rely on which elements there are and in what order iteration gives them."""
        if self._order_known:
            self._rely_on_own()
            return
        self._order_known = self._content_known = True
        if all(map(key_values.is_compared, self._raw)):
            self._guard("tuple({s0}) == {c0}", "tuple({c1}.__iter__({s0})) == {c0}", tuple(self._raw))
            if any(type(item) is not str for item in self._raw):  # 1, 1.0 and True are equal elements
                kinds = tuple(map(type, self._raw))
                self._guard(
                    "tuple(map(type, {s0})) == {c0}", "tuple(map(type, {c1}.__iter__({s0}))) == {c0}", kinds
                )
        else:
            ids = tuple(map(id, self._raw))
            self._guard("tuple(map(id, {s0})) == {c0}", "tuple(map(id, {c1}.__iter__({s0}))) == {c0}", ids)

    def _rely_on_own(self) -> None:
        if self.source is None and self.tracer is not None:
            self._told_apart.rely(self.tracer, self.elements.values())

    def _depend_on_presence(self, item: Value, key: Hashable) -> None:
        if key not in self._decided:
            self._guard_presence(item, key)

    def _guard_presence(self, item: Value, key: Hashable) -> None:
        """Rely on whether the object held the element when the call began."""
        if self._content_known or key in self._presence_known:
            return
        self._presence_known.add(key)
        try:
            constant = item.constant()
        except NotConstant:
            self.depend_on_content()
            return
        word = "in" if key in self.original else "not in"
        negation = "" if word == "in" else "not "
        self._guard(f"{{c0}} {word} {{s0}}", negation + "{c1}.__contains__({s0}, {c0})", constant)

    # Elements.

    def _key(self, tracer: Tracer, item: Value) -> Hashable:
        self.tracer = tracer
        if self.source is None and self._told_apart.takes(tracer, item):
            return item
        return wording.hashed(tracer, item, "a set element")

    def known_elements(self) -> list[Value]:
        """The elements in iteration order."""
        self.depend_on_order()
        order: Iterable[Hashable] = self.keys if self.source is None or self.mutated else self.elements
        return [self.elements[key] for key in order]

    def add_item(self, tracer: Tracer, item: Value) -> None:
        item = item.realize()
        key = self._key(tracer, item)
        if key in self.keys:
            self._depend_on_presence(item, key)
            return
        self.note_change(tracer)
        self._decided.add(key)
        self.version += 1
        self.keys.add(key)
        self.elements[key] = item

    def discard_item(self, tracer: Tracer, item: Value) -> bool:
        """Take an element out; whether it was there."""
        item = _looked_for(tracer, item)
        key = self._key(tracer, item)
        self._depend_on_presence(item, key)
        if key not in self.keys:
            return False
        if key not in self._presence_known:
            self.depend_on_content()  # added first: what the object held decides what is left to do
        self.note_change(tracer)
        self.version += 1
        self._decided.add(key)
        self.keys.remove(key)
        del self.elements[key]
        return True

    def change(self, tracer: Tracer, method: str, other: SetValue) -> None:
        """Let a method of real sets change the keys (``update``, ``difference_update`` …), then follow it."""
        self.depend_on_content()
        other.depend_on_content()
        self.note_change(tracer)
        self.version += 1
        known = {**other.elements, **self.elements}
        getattr(self.keys, method)(other.keys)
        kept = [key for key in self.elements if key in self.keys]
        self.elements = {key: known[key] for key in [*kept, *self.keys]}

    # Slots.

    def iterate(self, tracer: Tracer) -> Value:
        return SetIterator(self)

    def length(self, tracer: Tracer) -> int:
        self.depend_on_content()
        return len(self.keys)

    def length_value(self, tracer: Tracer) -> Value | None:
        source = length_of(self.source, self.base) if self.source and not self._content_known else None
        length = length_since(tracer, source, len(self.original), len(self.keys) - len(self.original))
        for key in () if length is None else self._decided & self.keys:  # one that was there already adds nothing
            self._guard_presence(self.elements[key], key)
        return length

    def truth(self, tracer: Tracer) -> bool:
        if self.original and not self._content_known and not self.mutated and self.base is None:
            self._guard("len({s0}) > {c0}", "", 0)
            return True
        self.depend_on_content()
        return bool(self.keys)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        item = _looked_for(tracer, item)
        if isinstance(item, NumberValue) and self._stays(tracer):
            self.depend_on_content()
            return key_values.equal_to(tracer, item, [self.elements[key] for key in self.keys]) is not None
        key = self._key(tracer, item)
        self._depend_on_presence(item, key)
        return key in self.keys

    def _stays(self, tracer: Tracer) -> bool:
        """Whether the elements are the same at all calls, and such that a number can be compared with each."""
        if not key_values.are_compared([self.elements[key] for key in self.keys]):
            return False
        if self._content_known or self.source is None:
            return True
        return not tracer.symbols.length_changes(len(self.original), length_of(self.source, self.base))

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        operand = content(other)
        if not isinstance(operand, SetValue):
            return None
        left, right = (operand, self) if reflected else (self, operand)
        if op.symbol in protocols.COMPARE:
            return compare_sets(tracer, op, left, right)
        if op.symbol.rstrip("=") not in _METHOD_NAMES:
            return None
        if op.symbol.endswith("="):
            if self.kind is frozenset:
                return None
            self.change(tracer, _IN_PLACE[op.symbol], operand)
            return self
        return left.combine(tracer, op.symbol, right)

    def combine(self, tracer: Tracer, symbol: str, other: SetValue) -> SetValue:
        """A new set of this kind: union, intersection, difference or symmetric difference."""
        self.depend_on_content()
        other.depend_on_content()
        result = SetValue(self.kind)
        result.keys = getattr(self.keys, _METHOD_NAMES[symbol])(other.keys)
        # Of two equal elements an intersection keeps the smaller set's, everything else the left one's.
        swapped = symbol == "&" and len(other.keys) < len(self.keys)
        known = {**self.elements, **other.elements} if swapped else {**other.elements, **self.elements}
        result.elements = {key: known[key] for key in result.keys}
        return result

    def copy(self, tracer: Tracer, kind: type) -> SetValue:
        self.depend_on_content()
        result = SetValue(kind)
        result.keys, result.elements = self.keys.copy(), dict(self.elements)
        return result

    def text(self, tracer: Tracer, conversion: str) -> str:
        name = self.kind.__name__
        if self._printing:
            return f"{name}(...)"
        self._printing = True
        try:
            reprs = ", ".join(protocols.text(tracer, item, "repr") for item in self.known_elements())
        finally:
            self._printing = False
        if not reprs:
            return f"{name}()"
        return f"{{{reprs}}}" if self.kind is set else f"{name}({{{reprs}}})"

    # Methods.

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        table = self.METHODS if self.kind is set else self.FROZEN_METHODS
        return call_from_table(tracer, self, table, self.kind(), name, args, kwargs)

    def _add(self, tracer: Tracer, item: Value) -> Value:
        self.add_item(tracer, item)
        return none()

    def _discard(self, tracer: Tracer, item: Value) -> Value:
        self.discard_item(tracer, item)
        return none()

    def _remove(self, tracer: Tracer, item: Value) -> Value:
        if not self.discard_item(tracer, item):
            tracer.throw(KeyError, key_values.exception_argument(item))
        return none()

    def _pop(self, tracer: Tracer) -> Value:
        elements = self.known_elements()
        if not elements:
            tracer.throw(KeyError, "pop from an empty set")
        self.discard_item(tracer, elements[0])
        return elements[0]

    def _clear(self, tracer: Tracer) -> Value:
        self.depend_on_content()
        self.note_change(tracer)
        self.version += 1
        self.keys.clear()
        self.elements.clear()
        return none()

    def _copy(self, tracer: Tracer) -> Value:
        # A frozen set is its own copy, as a tuple is.
        return self.copy(tracer, set) if self.kind is set else self

    def _update(self, tracer: Tracer, *others: Value) -> Value:
        for other in others:
            known = content(other)
            if isinstance(known, SetValue) and self.source is None:
                self.change(tracer, "update", known)
                continue
            for item in protocols.elements(tracer, protocols.iterate(tracer, other)):
                self.add_item(tracer, item)
        return none()

    def _init(self, tracer: Tracer, iterable: Value | None = None) -> Value:
        self._clear(tracer)
        return self._update(tracer, *([iterable] if iterable is not None else []))

    def _issubset(self, tracer: Tracer, other: Value) -> Value:
        return compare_sets(tracer, protocols.COMPARE["<="], self, _set_of(tracer, other))

    def _issuperset(self, tracer: Tracer, other: Value) -> Value:
        return compare_sets(tracer, protocols.COMPARE[">="], self, _set_of(tracer, other))

    def _isdisjoint(self, tracer: Tracer, other: Value) -> Value:
        self.depend_on_content()
        return ConstantValue(self.keys.isdisjoint(_set_of(tracer, other).keys))

    READS: ClassVar[dict[str, Method]] = {
        "copy": _copy,
        "issubset": _issubset,
        "issuperset": _issuperset,
        "isdisjoint": _isdisjoint,
    }
    METHODS: ClassVar[dict[str, Method]] = READS | {
        "add": _add,
        "discard": _discard,
        "remove": _remove,
        "pop": _pop,
        "clear": _clear,
        "update": _update,
        "__init__": _init,
    }
    FROZEN_METHODS: ClassVar[dict[str, Method]] = dict(READS)

    # What is left of it.

    def _added(self) -> list[Value]:
        return [item for key, item in self.elements.items() if key not in self.original]

    def _gone(self) -> list[Value]:
        return [item for key, item in self.original.items() if key not in self.keys]

    def parts(self) -> Iterable[Value]:
        return self.elements.values() if self.source is None else [*self._gone(), *self._added()]

    def rebuild(self, emitter: Emitter) -> str:
        items = emitter.rebuild_all(self.elements.values())
        if self.kind is set and items:
            return f"{{{items}}}"
        return f"{self.kind.__name__}({f'({items},)' if items else ''})"

    def rebuild_empty(self, emitter: Emitter) -> str:
        return f"{self.kind.__name__}()"

    def fill(self, emitter: Emitter, name: str) -> None:
        emitter.build(f"{name}.update(({emitter.rebuild_all(self.elements.values())},))")

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        name = emitter.read(self.source)
        call = f"{name}.{{}}(" if self.base is None else f"set.{{}}({name}, "
        changes = ((self._gone(), "discard", "difference_update"), (self._added(), "add", "update"))
        for items, one, many in changes:
            if len(items) == 1:
                emitter.effect(f"{call.format(one)}{emitter.rebuild(items[0])})")
            elif items:
                emitter.effect(f"{call.format(many)}({emitter.rebuild_all(items)}))")


def _set_of(tracer: Tracer, iterable: Value) -> SetValue:
    known = content(iterable)
    return known if isinstance(known, SetValue) else SetValue.of(tracer, protocols.unpack(tracer, iterable))


def compare_sets(tracer: Tracer, op: Operator, left: SetValue, right: SetValue) -> Value:
    """Equality and inclusion."""
    left.depend_on_content()
    right.depend_on_content()
    return ConstantValue(op.function(left.keys, right.keys))


def _combination(symbol: str) -> Method:
    """A method such as ``union``, which takes any number of iterables."""

    def method(owner: SetValue, tracer: Tracer, *others: Value) -> Value:
        result = owner.copy(tracer, owner.kind)
        for other in others:
            result = result.combine(tracer, symbol, _set_of(tracer, other))
        return result

    return method


def _looked_for(tracer: Tracer, item: Value) -> Value:
    """What is looked for in a set: sets are among frozen sets."""
    item = item.realize()
    return item.copy(tracer, frozenset) if isinstance(item, SetValue) and item.kind is set else item


def _change(name: str) -> Method:
    """A method such as ``difference_update``."""

    def method(owner: SetValue, tracer: Tracer, *others: Value) -> Value:
        each = (_set_of(tracer, other) for other in others)
        for other in list(each) if name == "intersection_update" else each:  # which is done when all have been seen
            owner.change(tracer, name, other)
        return none()

    return method


def _of_one(several: Method) -> Method:
    def method(owner: SetValue, tracer: Tracer, other: Value) -> Value:
        return several(owner, tracer, other)

    return method


for _symbol, _name in _METHOD_NAMES.items():
    _pair = _combination(_symbol), _change(f"{_name}_update")
    _plain, _in_place = map(_of_one, _pair) if _symbol == "^" else _pair
    SetValue.METHODS[_name] = SetValue.FROZEN_METHODS[_name] = _plain
    if _symbol != "|":
        SetValue.METHODS[f"{_name}_update"] = _in_place
