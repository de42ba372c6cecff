"""``obj.__dict__`` of a user object or function: a view that reads and writes the object's own attributes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from bothways.capture.guards.sources import Attr, Item, Source
from bothways.capture.values.code.attributes import C_FIELDS, class_attribute, is_data_descriptor, lookup
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.code.functions import FunctionValue
    from bothways.capture.values.code.partials import PartialValue
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.values.objects.objects import ObjectValue
    from bothways.capture.writing.emit import Emitter

_WRITES = frozenset("update setdefault pop popitem clear __setitem__ __delitem__ __ior__".split())


class InstanceDict(Value):
    """The attribute dictionary of an object."""

    def __init__(self, owner: ObjectValue | FunctionValue | PartialValue) -> None:
        self.owner = owner

    def python_type(self) -> type:
        return dict

    def identity(self) -> object:
        return ("__dict__", id(self.owner))

    def snapshot(self, tracer: Tracer) -> DictValue:
        """The whole dictionary as a new one; relies on the names and their order."""
        owner = self.owner
        content: dict[str, Value | None] = {}
        if owner.source is not None:
            original = owner.instance_dict()
            tracer.guard("tuple({s0}.__dict__) == {c0}", owner.source, tuple(original))
            whole = Attr(owner.source, "__dict__")
            content = {name: tracer.wrap(item, self._entry(whole, name)) for name, item in original.items()}
        for name, stored in owner.attrs.items():
            if isinstance(lookup(owner.python_type(), name), C_FIELDS):
                continue  # slots are not in the dictionary
            if name in getattr(owner, "moved", ()):
                content.pop(name, None)
            content[name] = stored
        pairs = [(ConstantValue(name), value) for name, value in content.items() if value is not None]
        shown = DictValue.from_pairs(tracer, list(pairs))
        shown.shown_by, shown.shown_of = self.snapshot, owner
        return shown

    def _entry(self, whole: Attr, name: str) -> Source:
        """Where to read an entry: through the attribute, as other code does, unless a descriptor hides it."""
        hidden = is_data_descriptor(lookup(self.owner.python_type(), name))
        return Item(whole, name) if hidden else Attr(whole.origin, name)

    def parts(self) -> Iterable[Value]:
        return (self.owner,)

    def name_hint(self) -> str:
        return "attributes"

    def rebuild(self, emitter: Emitter) -> str:
        return f"{emitter.rebuild(self.owner)}.__dict__"

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return self.snapshot(tracer).get_item(tracer, key)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        self._store(tracer, protocols.as_string(tracer, key), value)

    def del_item(self, tracer: Tracer, key: Value) -> None:
        self.snapshot(tracer).get_item(tracer, key)
        self._store(tracer, protocols.as_string(tracer, key), None)

    def _store(self, tracer: Tracer, name: str, value: Value | None) -> None:
        self.owner.store(tracer, name, value)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return self.snapshot(tracer).contains(tracer, item)

    def iterate(self, tracer: Tracer) -> Value:
        return self.snapshot(tracer).iterate(tracer)

    def length(self, tracer: Tracer) -> int:
        return self.snapshot(tracer).length(tracer)

    def truth(self, tracer: Tracer) -> bool:
        return self.snapshot(tracer).truth(tracer)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol == "|=":
            self.call_method(tracer, "update", [other], {})
            return self
        operand = other.snapshot(tracer) if isinstance(other, InstanceDict) else other
        return self.snapshot(tracer).binary(tracer, op, operand, reflected)

    def text(self, tracer: Tracer, conversion: str) -> str:
        return self.snapshot(tracer).text(tracer, conversion)

    def hash_key(self, tracer: Tracer) -> Hashable:
        tracer.throw(TypeError, "unhashable type: 'dict'")

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return class_attribute(tracer, self, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name not in _WRITES:
            return self.snapshot(tracer).call_method(tracer, name, args, kwargs)
        before = self.snapshot(tracer)
        after = self.snapshot(tracer)
        result = after.call_method(tracer, name, args, kwargs)
        new = dict(after.constant_items(tracer))
        for key, _ in before.constant_items(tracer):
            if key not in new:
                self._store(tracer, key, None)
        for key, value in new.items():
            self._store(tracer, key, value)
        return result
