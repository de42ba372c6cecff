"""Instances of user classes: their attributes and special methods.

Attributes are found the way ``object.__getattribute__`` finds them; descriptors and dunder methods written in
Python are inlined. An object that extends a built-in container holds that part as its
``payload``. Changes to external objects stay in an overlay until the program replays them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards import policy
from bothways.capture.guards.guards import WeakIdentity
from bothways.capture.guards.sources import Attr, Reading, Source
from bothways.capture.overrides.overrides import has_handler
from bothways.capture.standins.sequences import iterate_by_index
from bothways.capture.values.code import object_methods
from bothways.capture.values.code.attributes import (
    C_FIELDS,
    C_METHODS,
    HEAP_TYPE,
    MISSING,
    bind_class_attribute,
    class_entry,
    find_class_attribute,
    is_data_descriptor,
    lookup,
    type_attribute,
)
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.held_attributes import keep_attribute, stores_otherwise, was_held
from bothways.capture.values.code.instance_dicts import InstanceDict
from bothways.capture.values.code.object_methods import call_repr
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.answers import answered
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.core.class_guards import guard_class_attribute, guard_class_lacks, guard_class_says
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.capture.values.core.methods import refuse_attribute
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.core.wording import empty_slot, name_in_c
from bothways.source_text import described, is_plain_name

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class ObjectValue(Value):
    """An instance of a user class."""

    two_phase = True
    printing = False  # whether its ``__repr__`` is running

    def __init__(
        self, cls: type, *, obj: object = MISSING, source: Source | None = None, payload: Value | None = None
    ) -> None:
        self.cls, self.obj, self.source, self.payload = cls, obj, source, payload
        if payload is not None:
            payload.holder = self
        # What captured code stored; None stands for a deleted attribute.
        self.attrs: dict[str, Value | None] = {}
        self.moved: set[str] = set()  # attributes that were deleted and stored again, which puts them last
        self.new_args: list[Value] = []

    def python_type(self) -> type:
        return self.cls

    def overrides_functions(self) -> bool:
        return has_handler(self.cls)

    def hash_key(self, tracer: Tracer) -> Hashable:
        method = find_class_attribute(tracer, self.cls, "__hash__")
        if method is object.__hash__:
            self.rely_on_identity(tracer)
            return self
        if method is None:
            tracer.throw(TypeError, f"unhashable type: {name_in_c(self.cls)!r}")
        hashed = self.special(tracer, "__hash__")
        if hashed is not None:
            hashed = answered(tracer, self.cls, "__hash__", hashed)
            return HashedObject(tracer, self, protocols.as_constant(tracer, hashed))
        if self.payload is None or isinstance(lookup(self.cls, "__eq__"), types.FunctionType):
            tracer.stop("hash_unknown", f"cannot hash {self.describe()}")
        return self.payload.hash_key(tracer)

    def is_its_own_key(self, tracer: Tracer) -> bool:
        """Whether two keys of the kind are equal where they are one object, which can be referred to weakly."""
        is_weak = hasattr(self.cls, "__weakref__")
        return is_weak and find_class_attribute(tracer, self.cls, "__hash__") is object.__hash__

    def rely_on_identity(self, tracer: Tracer) -> None:
        """Assume that it is this very object at each call."""
        if self.source is not None:
            if not hasattr(self.cls, "__weakref__"):
                tracer.stop("hash_unknown", f"{self.describe()} is known by identity and cannot be referred to weakly")
            tracer.guard("{s0} is {c0}", self.source, WeakIdentity(self.obj))

    def constant(self) -> Any:
        payload = self.payload
        if payload is not None and not self.attrs and self.cls.__module__ == "collections":
            return payload.constant()
        if isinstance(payload, ConstantValue) and not overrides_operators(self.cls):
            return payload.content
        raise NotConstant(self.describe())

    # Attributes.

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        custom = lookup(self.cls, "__getattribute__")
        try:
            if isinstance(custom, types.FunctionType):
                guard_class_attribute(tracer, self.cls, "__getattribute__", custom)
                return protocols.call(tracer, linked.library_value(tracer, custom), [self, ConstantValue(name)])
            guard_class_says(tracer, self.cls, "__getattribute__")
            return self.generic_get_attr(tracer, name)
        except Raised as error:
            fallback = lookup(self.cls, "__getattr__")
            if fallback is MISSING or not issubclass(error.value.python_type(), AttributeError):
                raise
            return self.missing_attr(tracer, name, fallback)

    def missing_attr(self, tracer: Tracer, name: str, fallback: Any) -> Value:
        guard_class_attribute(tracer, self.cls, "__getattr__", fallback)
        return protocols.call(tracer, linked.library_value(tracer, fallback), [self, ConstantValue(name)])

    def generic_get_attr(self, tracer: Tracer, name: str) -> Value:
        """``object.__getattribute__``."""
        if name == "__class__":
            return ClassValue.of(tracer, self.cls)
        if name == "__dict__" and stores_otherwise(self.cls):
            tracer.stop("attribute_unknown", f"cannot read {name!r} of {self.describe()}")
        if name == "__dict__" and self._has_dict():
            return InstanceDict(self)
        attribute = find_class_attribute(tracer, self.cls, name)
        if attribute is not MISSING and is_data_descriptor(attribute):
            if isinstance(attribute, C_FIELDS):
                return self._field(tracer, name, attribute)
            return bind_class_attribute(tracer, self, self.cls, name, attribute)
        if name in self.attrs:
            stored = self.attrs[name]
            if stored is not None:
                return stored
        elif self.source is not None:
            content = self.instance_dict()
            if name in content:
                guard_class_says(tracer, self.cls, name)
                # What a ``__getattribute__`` of the user's makes of it is inlined.
                if isinstance(lookup(self.cls, "__getattribute__"), types.FunctionType):
                    tracer.guard("{c0} in {s0}.__dict__", self.source, name)
                    place = Reading(self.source, f"object.__getattribute__({{}}, {name!r})")
                    return tracer.wrap(content[name], place)
                return tracer.member(content[name], Attr(self.source, name), "{c0} in {s0}.__dict__")
            if hasattr(self.obj, "__dict__") and not self.library_method(name, attribute):
                tracer.guard("{c0} not in {s0}.__dict__", self.source, name)
        if attribute is not MISSING:
            return bind_class_attribute(tracer, self, self.cls, name, attribute)
        guard_class_lacks(tracer, self.cls)
        tracer.throw(AttributeError, f"{name_in_c(self.cls)!r} object has no attribute {name!r}")

    def library_method(self, name: str, attribute: Any) -> bool:
        """Methods of library classes are not expected to be shadowed on instances, so that is not guarded."""
        return isinstance(attribute, types.FunctionType) and policy.is_library_module(self.cls.__module__)

    def instance_dict(self) -> dict[str, Any]:
        content = getattr(self.obj, "__dict__", None)
        return content if isinstance(content, dict) else {}

    def _field(self, tracer: Tracer, name: str, attribute: Any) -> Value:
        """A slot, or a field that a C base class keeps."""
        if name in self.attrs:
            stored = self.attrs[name]
            if stored is not None:
                return stored
        elif self.payload is not None and not isinstance(self.payload, ConstantValue) and self._is_of_payload(name):
            return self.payload.get_attr(tracer, name)
        elif self.obj is not MISSING and self.source is not None:
            content = getattr(self.obj, name, MISSING)
            if content is not MISSING:
                return tracer.member(content, Attr(self.source, name), "hasattr({s0}, {c0})")
            tracer.guard(f"not hasattr({{s0}}, {name!r})", self.source)
        elif isinstance(attribute, types.GetSetDescriptorType):
            tracer.stop("attribute_unknown", f"cannot read {name!r} of {self.describe()}")
        tracer.throw(AttributeError, empty_slot(self.cls, name))

    def _is_of_payload(self, name: str) -> bool:
        assert self.payload is not None
        return lookup(self.payload.python_type(), name) is lookup(self.cls, name)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        custom = lookup(self.cls, "__setattr__")
        if isinstance(custom, types.FunctionType):
            guard_class_attribute(tracer, self.cls, "__setattr__", custom)
            protocols.call(tracer, linked.library_value(tracer, custom), [self, ConstantValue(name), value])
        else:
            guard_class_says(tracer, self.cls, "__setattr__")
            self.generic_set_attr(tracer, name, value)

    def generic_set_attr(self, tracer: Tracer, name: str, value: Value | None) -> None:
        """``object.__setattr__``, and ``object.__delattr__`` when value is None."""
        if name in ("__class__", "__dict__") or stores_otherwise(self.cls):
            tracer.stop("mutation_unknown", f"cannot set {name!r} of {self.describe()}")
        attribute = find_class_attribute(tracer, self.cls, name)
        if attribute is not MISSING and is_data_descriptor(attribute) and not isinstance(attribute, C_FIELDS):
            self._set_through(tracer, name, attribute, value, linked.library_value)
            return
        guard_class_says(tracer, self.cls, name)
        if not self._has_dict() and not isinstance(attribute, C_FIELDS):
            refuse_attribute(tracer, self, name, attribute is not MISSING)
        if value is None:
            self._check_deletable(tracer, name, attribute)
        self.store(tracer, name, value)

    def _check_deletable(self, tracer: Tracer, name: str, attribute: Any) -> None:
        """Deleting what is not there raises; what only the class has is not there."""
        if isinstance(attribute, C_FIELDS):
            self._check_filled(tracer, name, attribute)
        elif name in self.attrs:
            if self.attrs[name] is None:
                tracer.throw(AttributeError, f"{name_in_c(self.cls)!r} object has no attribute {name!r}")
        elif self.source is None or name not in self.instance_dict():
            if self.source is not None:
                tracer.guard("{c0} not in {s0}.__dict__", self.source, name)
            tracer.throw(AttributeError, f"{name_in_c(self.cls)!r} object has no attribute {name!r}")
        else:
            tracer.guard("{c0} in {s0}.__dict__", self.source, name)

    def _check_filled(self, tracer: Tracer, name: str, attribute: Any) -> None:
        """Python says of a slot that has nothing to be deleted no more than its name."""
        try:
            self._field(tracer, name, attribute)
        except Raised as error:
            if isinstance(attribute, types.MemberDescriptorType) and error.value.python_type() is AttributeError:
                tracer.throw(AttributeError, name)
            raise

    def store(self, tracer: Tracer, name: str, value: Value | None) -> None:
        """Keep what the attribute is from now on; None deletes it."""
        keep_attribute(tracer, self, name, value)

    def _has_dict(self) -> bool:
        return self.cls.__dictoffset__ != 0

    def _set_through(
        self, tracer: Tracer, name: str, attribute: Any, value: Value | None, wrap: Callable[..., Value]
    ) -> None:
        guard_class_attribute(tracer, self.cls, name, attribute)
        if isinstance(attribute, property):
            function = attribute.fset if value is not None else attribute.fdel
            if function is None:
                missing = "setter" if value is not None else "deleter"
                tracer.throw(AttributeError, f"property {name!r} of {self.cls.__qualname__!r} object has no {missing}")
            protocols.call(tracer, wrap(tracer, function), [self, *([value] if value is not None else [])])
            return
        function = lookup(type(attribute), "__set__" if value is not None else "__delete__")
        if not isinstance(function, types.FunctionType):
            tracer.stop("mutation_unknown", f"{name!r} of {self.cls.__name__} is a {type(attribute).__name__}")
        descriptor = class_entry(tracer, self.cls, name, attribute)
        protocols.call(tracer, wrap(tracer, function), [descriptor, self, *([value] if value is not None else [])])

    def del_attr(self, tracer: Tracer, name: str) -> None:
        custom = lookup(self.cls, "__delattr__")
        if isinstance(custom, types.FunctionType):
            guard_class_attribute(tracer, self.cls, "__delattr__", custom)
            protocols.call(tracer, linked.library_value(tracer, custom), [self, ConstantValue(name)])
        else:
            guard_class_says(tracer, self.cls, "__delattr__")
            self.generic_set_attr(tracer, name, None)

    # Special methods.

    def special(self, tracer: Tracer, name: str, *args: Value) -> Value | None:
        """Call a special method written in Python; None when the class has none."""
        attribute = find_class_attribute(tracer, self.cls, name)
        if attribute is MISSING or attribute is None or isinstance(attribute, C_METHODS):
            owner = getattr(attribute, "__objclass__", object)
            if self.payload is None and owner.__flags__ & HEAP_TYPE:
                tracer.stop("operator_unknown", f"{name} of {self.describe()} is written in C")
            guard_class_lacks(tracer, self.cls)
            return None
        bound = bind_class_attribute(tracer, self, self.cls, name, attribute)
        return protocols.call(tracer, bound, list(args))

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        method = type_attribute(tracer, self, "__call__")
        if method is None:
            tracer.throw(TypeError, f"{name_in_c(self.cls)!r} object is not callable")
        if isinstance(lookup(self.cls, "__call__"), C_METHODS):
            tracer.stop("call_unknown", f"cannot call {described(self.cls)}, which is written in C")
        return protocols.call(tracer, method, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        handler = object_methods.OBJECT_METHODS.get(name)
        own = lookup(self.cls, name)
        is_object_method = own is getattr(object, name, MISSING) or name == "__init_subclass__"
        if handler is not None and (self.payload is None or is_object_method):
            return handler(tracer, self, args, kwargs)
        if self.payload is None:
            tracer.stop("call_unknown", f"cannot call {name!r} of {self.describe()}")
        has_default = name == "__getitem__" and lookup(self.cls, "__missing__") is not MISSING
        if has_default and not self.payload.contains(tracer, args[0].realize()):
            result = self.special(tracer, "__missing__", args[0])
            if result is not None:
                return result
        return self.payload.call_method(tracer, name, args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        result = self.special(tracer, "__getitem__", key)
        if result is not None:
            return result
        if self.payload is not None:
            return self.call_method(tracer, "__getitem__", [key], {})
        return super().get_item(tracer, key)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if self.special(tracer, "__setitem__", key, value) is None:
            self._payload_or(tracer, super().set_item, "set_item", key, value)

    def del_item(self, tracer: Tracer, key: Value) -> None:
        if self.special(tracer, "__delitem__", key) is None:
            self._payload_or(tracer, super().del_item, "del_item", key)

    def _payload_or(self, tracer: Tracer, of_objects: Callable[..., Any], slot: str, *args: Any) -> Any:
        if self.payload is not None:
            return getattr(self.payload, slot)(tracer, *args)
        return of_objects(tracer, *args)

    def iterate(self, tracer: Tracer) -> Value:
        result = self.special(tracer, "__iter__")
        if result is not None:
            result = result.realize()
            if lookup(result.python_type(), "__next__") is MISSING:
                kind = result.python_type().__name__
                tracer.throw(TypeError, f"iter() returned non-iterator of type {kind!r}")
            return result
        if lookup(self.cls, "__iter__") is None:
            return super().iterate(tracer)
        if self.payload is not None:
            return self.payload.iterate(tracer)
        if lookup(self.cls, "__getitem__") is not MISSING:
            return tracer.inline(iterate_by_index, [self], {})
        return super().iterate(tracer)

    def next(self, tracer: Tracer) -> Value:
        result = self.special(tracer, "__next__")
        return result if result is not None else super().next(tracer)

    def truth(self, tracer: Tracer) -> bool:
        for name in ("__bool__", "__len__"):
            result = self.special(tracer, name)
            if result is not None:
                return protocols.truth(tracer, answered(tracer, self.cls, name, result))
        return self.payload.truth(tracer) if self.payload is not None else True

    def length(self, tracer: Tracer) -> int:
        result = self.special(tracer, "__len__")
        if result is not None:
            return protocols.as_index(tracer, answered(tracer, self.cls, "__len__", result))
        return int(self._payload_or(tracer, super().length, "length"))

    def length_value(self, tracer: Tracer) -> Value | None:
        result = self.special(tracer, "__len__")
        if result is not None:
            return answered(tracer, self.cls, "__len__", result)
        return None if self.payload is None else self.payload.length_value(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        result = self.special(tracer, "__contains__", item)
        if result is not None:
            return protocols.truth(tracer, result)
        return bool(self._payload_or(tracer, super().contains, "contains", item))

    def binary(self, tracer: Tracer, op: protocols.Operator, other: Value, reflected: bool) -> Value | None:
        method = op.reflected if reflected else op.method
        if method and lookup(self.cls, method) is None:
            tracer.throw(TypeError, "'NoneType' object is not callable")  # a class opts out this way
        result = self.special(tracer, method, other) if method else None
        if result is None and op.symbol == "!=":
            result = self._inverted_equality(tracer, other)
        if result is None and self.payload is not None:
            return self._payload_binary(tracer, op, other, reflected)
        if result is not None:
            result = result.realize()
            if isinstance(result, ConstantValue) and result.content is NotImplemented:
                return None
        return result

    def _payload_binary(self, tracer: Tracer, op: protocols.Operator, other: Value, reflected: bool) -> Value | None:
        assert self.payload is not None
        operand = other.payload if isinstance(other, ObjectValue) and other.payload is not None else other
        if isinstance(self.payload, ConstantValue) and isinstance(operand, ConstantValue):
            left, right = (operand, self.payload) if reflected else (self.payload, operand)
            return constant_value(tracer.run_const(op.function, left.content, right.content), tracer)
        result = self.payload.binary(tracer, op, operand, reflected)
        return self if result is self.payload else result  # an in-place operator gives the object itself

    def _inverted_equality(self, tracer: Tracer, other: Value) -> Value | None:
        result = self.special(tracer, "__eq__", other)
        if result is None:
            return None
        result = result.realize()
        if isinstance(result, ConstantValue) and result.content is NotImplemented:
            return None
        return ConstantValue(not protocols.truth(tracer, result))

    def unary(self, tracer: Tracer, function: Callable[[Any], Any], method: str) -> Value:
        result = self.special(tracer, method)
        if result is not None:
            return result
        if isinstance(self.payload, ConstantValue):
            return constant_value(tracer.run_const(function, self.payload.content), tracer)
        return self._payload_or(tracer, super().unary, "unary", function, method)

    def text(self, tracer: Tracer, conversion: str) -> str:
        names = ("__repr__",) if conversion == "repr" else ("__str__", "__repr__")
        for name in names:
            result = call_repr(tracer, self) if name == "__repr__" else self.special(tracer, name)
            if result is not None:
                return protocols.as_string(tracer, answered(tracer, self.cls, name, result))
            if name == "__str__" and lookup(self.cls, "__str__") is not object.__str__:
                break
        if self.payload is not None:
            return self.payload.text(tracer, conversion)
        return super().text(tracer, conversion)

    def format(self, tracer: Tracer, spec: str) -> str | None:
        result = self.special(tracer, "__format__", ConstantValue(spec))
        if result is None and isinstance(self.payload, ConstantValue) and spec:
            return protocols.format_value(tracer, self.payload, spec)
        return None if result is None else protocols.as_string(tracer, answered(tracer, self.cls, "__format__", result))

    # After the call.

    def parts(self) -> Iterable[Value]:
        stored = [value for value in self.attrs.values() if value is not None]
        if self.source is None and self.payload is not None:
            stored.append(self.payload)
        return [*stored, *self.new_args]

    def name_hint(self) -> str:
        return self.cls.__name__.lower()

    def rebuild_empty(self, emitter: Emitter) -> str:
        return linked.rebuild_new(self, emitter)

    def fill(self, emitter: Emitter, name: str) -> None:
        linked.fill_payload(self, emitter, name)
        for attribute, value in self.attrs.items():
            if value is not None:
                emitter.build(self._store(name, attribute, emitter.rebuild(value)))

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        name = emitter.read(self.source)
        for attribute, value in self.attrs.items():
            if (value is None or attribute in self.moved) and was_held(self, attribute):
                hidden = attribute in self.instance_dict() and is_data_descriptor(lookup(self.cls, attribute))
                plain = f"object.__delattr__({name}, {attribute!r})"
                emitter.effect(f"del {name}.__dict__[{attribute!r}]" if hidden else plain)
            if value is not None:
                emitter.effect(self._store(name, attribute, emitter.rebuild(value)))

    def _store(self, name: str, attribute: str, value: str) -> str:
        custom = isinstance(lookup(self.cls, "__setattr__"), types.FunctionType)
        descriptor = lookup(self.cls, attribute)
        hidden = descriptor is not MISSING and is_data_descriptor(descriptor)
        if hidden and not isinstance(descriptor, C_FIELDS):
            return f"{name}.__dict__[{attribute!r}] = {value}"
        if not custom and not hidden and is_plain_name(attribute):
            return f"{name}.{attribute} = {value}"
        return f"object.__setattr__({name}, {attribute!r}, {value})"


def overrides_operators(cls: type) -> bool:
    """Whether a class that extends a number or a string defines special methods that use it in their own way."""
    own = (base for base in cls.__mro__ if not policy.is_library_module(base.__module__))
    return any(
        name.startswith("__") and isinstance(attribute, types.FunctionType) and name not in ("__new__", "__init__")
        for base in own
        for name, attribute in base.__dict__.items()
    )


class HashedObject:
    """A dictionary key for an object with its own ``__hash__`` and ``__eq__``, which are inlined."""

    def __init__(self, tracer: Tracer, value: ObjectValue, hashed: int) -> None:
        self.tracer, self.value, self.hashed = tracer, value, hashed

    def __hash__(self) -> int:
        return hash(self.hashed)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HashedObject):
            return protocols.equal(self.tracer, self.value, other.value)
        return False
