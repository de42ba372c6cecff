"""Instances of user classes, and attribute lookup as Python does it.

Attributes are found statically, the way ``object.__getattribute__`` finds them; descriptors and dunder
methods written in Python are inlined. An object that extends a built-in container holds that part as its
``payload``. Changes to external objects stay in an overlay until the program replays them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture import policy, protocols
from bothways.capture.guards import WeakIdentity
from bothways.capture.sources import Attr, Source
from bothways.capture.values.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.constants import ConstantValue
from bothways.capture.values.functions import MethodValue

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.tracer import Tracer

MISSING = object()
C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)
C_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def lookup(cls: type, name: str) -> Any:
    """A class attribute found along the MRO without running any code, or MISSING."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def is_data_descriptor(attribute: Any) -> bool:
    kind = type(attribute)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def guard_class_attribute(tracer: Tracer, cls: type, name: str, attribute: Any) -> None:
    """Assume that a user class still has this attribute; library classes are taken as they are."""
    if policy.is_library_module(cls.__module__):
        return
    source = tracer.inject(cls, cls.__qualname__)
    if isinstance(attribute, classmethod):
        tracer.guard(f"{{s0}}.{name}.__func__ is {{c0}}", source, attribute.__func__)
    elif isinstance(attribute, staticmethod):
        tracer.guard(f"{{s0}}.{name} is {{c0}}", source, attribute.__func__)
    elif isinstance(attribute, (types.FunctionType, property)):
        tracer.guard(f"{{s0}}.{name} is {{c0}}", source, attribute)


def bind_class_attribute(tracer: Tracer, owner: Value, cls: type, name: str, attribute: Any) -> Value:
    """What ``owner.name`` gives when the class (or ``super``) has ``attribute`` and the instance does not."""
    from bothways.capture.values.builtins import BoundBuiltin
    from bothways.capture.values.classes import ClassValue
    from bothways.capture.wrap import library_value

    guard_class_attribute(tracer, cls, name, attribute)
    if isinstance(attribute, types.FunctionType):
        return MethodValue(class_function(tracer, cls, name, attribute), owner)
    if isinstance(attribute, staticmethod):
        return library_value(tracer, attribute.__func__)
    if isinstance(attribute, (classmethod, types.ClassMethodDescriptorType)):
        bound_to = owner if isinstance(owner, ClassValue) else ClassValue.of(tracer, cls)
        if isinstance(attribute, types.ClassMethodDescriptorType):
            return BoundBuiltin(bound_to, name)
        return MethodValue(library_value(tracer, attribute.__func__), bound_to)
    if isinstance(attribute, property):
        if attribute.fget is None:
            tracer.throw(AttributeError, f"property {name!r} of {cls.__name__!r} object has no getter")
        return protocols.call(tracer, library_value(tracer, attribute.fget), [owner])
    if isinstance(attribute, functools.cached_property):
        result = protocols.call(tracer, library_value(tracer, attribute.func), [owner])
        owner.set_attr(tracer, name, result)
        return result
    if isinstance(attribute, C_METHODS):
        return BoundBuiltin(owner, name)
    getter = lookup(type(attribute), "__get__")
    if isinstance(getter, types.FunctionType):
        descriptor = class_variable(tracer, cls, name, attribute)
        return protocols.call(tracer, library_value(tracer, getter), [descriptor, owner, ClassValue.of(tracer, cls)])
    if getter is not MISSING:
        tracer.stop("attribute_unknown", f"{name!r} of {cls.__name__} is a {type(attribute).__name__}")
    return class_variable(tracer, cls, name, attribute)


def class_function(tracer: Tracer, cls: type, name: str, function: types.FunctionType) -> Value:
    from bothways.capture.wrap import library_value

    return library_value(tracer, function)


def class_variable(tracer: Tracer, cls: type, name: str, attribute: Any) -> Value:
    """A plain value in a class body, or the one captured code stored there."""
    from bothways.capture.values.classes import ClassValue

    for base in cls.__mro__:
        known = tracer.known(base)
        if isinstance(known, ClassValue) and name in known.attrs:
            return known.attrs[name]
    source = Attr(tracer.inject(cls, cls.__qualname__), name)
    return tracer.member(attribute, source, "hasattr({s0}, {c0})")


def class_attribute(tracer: Tracer, owner: Value, name: str) -> Value:
    """``owner.name`` found on the owner's type alone: for kinds whose instances have no ``__dict__``."""
    from bothways.capture.values.classes import ClassValue

    cls = owner.python_type()
    if name == "__class__":
        return ClassValue.of(tracer, cls)
    attribute = lookup(cls, name)
    if attribute is MISSING:
        tracer.throw(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")
    if isinstance(attribute, C_FIELDS):
        try:
            content = owner.constant()
        except NotConstant:
            tracer.stop("attribute_unknown", f"cannot read {name!r} of {owner.describe()}")
        from bothways.capture.values.constants import constant_value

        return constant_value(getattr(content, name), tracer)
    return bind_class_attribute(tracer, owner, cls, name, attribute)


def type_attribute(tracer: Tracer, owner: Value, name: str) -> Value | None:
    """A special method, looked up on the type and bound, or None."""
    owner = owner.realize()
    attribute = lookup(owner.python_type(), name)
    if attribute is MISSING or attribute is None:
        return None
    if not isinstance(owner, ObjectValue):
        return owner.get_attr(tracer, name)  # kinds of our own answer for their special methods themselves
    return bind_class_attribute(tracer, owner, owner.python_type(), name, attribute)


class ObjectValue(Value):
    """An instance of a user class."""

    two_phase = True

    def __init__(
        self, cls: type, *, obj: object = MISSING, source: Source | None = None, payload: Value | None = None
    ) -> None:
        self.cls, self.obj, self.source, self.payload = cls, obj, source, payload
        # What captured code stored; None stands for a deleted attribute.
        self.attrs: dict[str, Value | None] = {}
        self.new_args: list[Value] = []

    def python_type(self) -> type:
        return self.cls

    def hash_key(self, tracer: Tracer) -> Hashable:
        if lookup(self.cls, "__hash__") is object.__hash__:
            if self.source is not None:
                tracer.guard("{s0} is {c0}", self.source, WeakIdentity(self.obj))
            return self
        if lookup(self.cls, "__hash__") is None:
            tracer.throw(TypeError, f"unhashable type: {self.cls.__name__!r}")
        hashed = self._special(tracer, "__hash__")
        if hashed is None or self.payload is not None:
            tracer.stop("hash_unknown", f"cannot hash {self.describe()}")
        return HashedObject(tracer, self, protocols.as_constant(tracer, hashed))

    def constant(self) -> Any:
        if self.payload is not None and not self.attrs and self.cls.__module__ in ("collections",):
            return self.payload.constant()
        raise NotConstant(self.describe())

    # Attributes.

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.tracer import Observed
        from bothways.capture.wrap import library_value

        custom = lookup(self.cls, "__getattribute__")
        try:
            if isinstance(custom, types.FunctionType):
                return protocols.call(tracer, library_value(tracer, custom), [self, ConstantValue(name)])
            return self.generic_get_attr(tracer, name)
        except Observed as observed:
            fallback = lookup(self.cls, "__getattr__")
            if fallback is MISSING or not issubclass(observed.value.python_type(), AttributeError):
                raise
            return self.missing_attr(tracer, name, fallback)

    def missing_attr(self, tracer: Tracer, name: str, fallback: Any) -> Value:
        from bothways.capture.wrap import library_value

        guard_class_attribute(tracer, self.cls, "__getattr__", fallback)
        return protocols.call(tracer, library_value(tracer, fallback), [self, ConstantValue(name)])

    def generic_get_attr(self, tracer: Tracer, name: str) -> Value:
        """``object.__getattribute__``."""
        from bothways.capture.values.classes import ClassValue

        if name == "__class__":
            return ClassValue.of(tracer, self.cls)
        if name == "__dict__":
            from bothways.capture.values.instance_dicts import InstanceDict

            return InstanceDict(self)
        attribute = lookup(self.cls, name)
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
                return tracer.member(content[name], Attr(self.source, name), "{c0} in {s0}.__dict__")
            if hasattr(self.obj, "__dict__") and not self.library_method(attribute):
                tracer.guard("{c0} not in {s0}.__dict__", self.source, name)
        if attribute is not MISSING:
            return bind_class_attribute(tracer, self, self.cls, name, attribute)
        tracer.throw(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def library_method(self, attribute: Any) -> bool:
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
        elif self.obj is not MISSING and self.source is not None:
            content = getattr(self.obj, name, MISSING)
            if content is not MISSING:
                return tracer.member(content, Attr(self.source, name), "hasattr({s0}, {c0})")
            tracer.guard(f"not hasattr({{s0}}, {name!r})", self.source)
        elif isinstance(attribute, types.GetSetDescriptorType):
            tracer.stop("attribute_unknown", f"cannot read {name!r} of {self.describe()}")
        tracer.throw(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        from bothways.capture.wrap import library_value

        custom = lookup(self.cls, "__setattr__")
        if isinstance(custom, types.FunctionType):
            protocols.call(tracer, library_value(tracer, custom), [self, ConstantValue(name), value])
        else:
            self.generic_set_attr(tracer, name, value)

    def generic_set_attr(self, tracer: Tracer, name: str, value: Value | None) -> None:
        """``object.__setattr__``, and ``object.__delattr__`` when value is None."""
        from bothways.capture.wrap import library_value

        if name in ("__class__", "__dict__"):
            tracer.stop("mutation_unknown", f"cannot set {name!r} of {self.describe()}")
        attribute = lookup(self.cls, name)
        if attribute is not MISSING and is_data_descriptor(attribute) and not isinstance(attribute, C_FIELDS):
            self._set_through(tracer, name, attribute, value, library_value)
            return
        if attribute is MISSING and not self._has_dict():
            tracer.throw(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
        if value is None:
            self.generic_get_attr(tracer, name)  # deleting what is not there raises
        self.attrs[name] = value
        if self.source is not None:
            self.mutated = True
            tracer.effects.mutated(self)

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
        descriptor = class_variable(tracer, self.cls, name, attribute)
        protocols.call(tracer, wrap(tracer, function), [descriptor, self, *([value] if value is not None else [])])

    def del_attr(self, tracer: Tracer, name: str) -> None:
        from bothways.capture.wrap import library_value

        custom = lookup(self.cls, "__delattr__")
        if isinstance(custom, types.FunctionType):
            protocols.call(tracer, library_value(tracer, custom), [self, ConstantValue(name)])
        else:
            self.generic_set_attr(tracer, name, None)

    # Special methods.

    def _special(self, tracer: Tracer, name: str, *args: Value) -> Value | None:
        """Call a special method written in Python, or one of the payload; None when the class has none."""
        attribute = lookup(self.cls, name)
        if attribute is MISSING or attribute is None:
            return None
        if isinstance(attribute, C_METHODS):
            return None
        bound = bind_class_attribute(tracer, self, self.cls, name, attribute)
        return protocols.call(tracer, bound, list(args))

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        method = type_attribute(tracer, self, "__call__")
        if method is None:
            tracer.throw(TypeError, f"{self.cls.__name__!r} object is not callable")
        return protocols.call(tracer, method, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        from bothways.capture.values import object_methods

        handler = object_methods.HANDLERS.get(name)
        own = lookup(self.cls, name)
        is_object_method = own is getattr(object, name, MISSING) or name == "__init_subclass__"
        if handler is not None and (self.payload is None or is_object_method):
            return handler(tracer, self, args, kwargs)
        if self.payload is None:
            tracer.stop("call_unknown", f"cannot call {name!r} of {self.describe()}")
        if name == "__getitem__" and lookup(self.cls, "__missing__") is not MISSING:
            if not self.payload.contains(tracer, args[0].realize()):
                result = self._special(tracer, "__missing__", args[0])
                if result is not None:
                    return result
        return self.payload.call_method(tracer, name, args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        result = self._special(tracer, "__getitem__", key)
        if result is not None:
            return result
        if self.payload is not None:
            return self.call_method(tracer, "__getitem__", [key], {})
        return super().get_item(tracer, key)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if self._special(tracer, "__setitem__", key, value) is None:
            self._payload_or(tracer, super().set_item, "set_item", key, value)

    def del_item(self, tracer: Tracer, key: Value) -> None:
        if self._special(tracer, "__delitem__", key) is None:
            self._payload_or(tracer, super().del_item, "del_item", key)

    def _payload_or(self, tracer: Tracer, otherwise: Callable[..., Any], slot: str, *args: Value) -> Any:
        if self.payload is not None:
            return getattr(self.payload, slot)(tracer, *args)
        return otherwise(tracer, *args)

    def iterate(self, tracer: Tracer) -> Value:
        result = self._special(tracer, "__iter__")
        if result is not None:
            return result.realize()
        if self.payload is not None:
            return self.payload.iterate(tracer)
        if lookup(self.cls, "__getitem__") is not MISSING:
            from bothways.capture.standins.sequences import iterate_by_index

            return tracer.inline(iterate_by_index, [self], {})
        return super().iterate(tracer)

    def next(self, tracer: Tracer) -> Value:
        result = self._special(tracer, "__next__")
        return result if result is not None else super().next(tracer)

    def truth(self, tracer: Tracer) -> bool:
        result = self._special(tracer, "__bool__")
        if result is not None:
            return protocols.truth(tracer, result)
        result = self._special(tracer, "__len__")
        if result is not None:
            return protocols.truth(tracer, result)
        return self.payload.truth(tracer) if self.payload is not None else True

    def length(self, tracer: Tracer) -> int:
        result = self._special(tracer, "__len__")
        if result is not None:
            return protocols.as_index(tracer, result)
        return int(self._payload_or(tracer, super().length, "length"))

    def contains(self, tracer: Tracer, item: Value) -> bool:
        result = self._special(tracer, "__contains__", item)
        if result is not None:
            return protocols.truth(tracer, result)
        return bool(self._payload_or(tracer, super().contains, "contains", item))

    def binary(self, tracer: Tracer, op: protocols.Operator, other: Value, reflected: bool) -> Value | None:
        method = op.reflected if reflected else op.method
        result = self._special(tracer, method, other) if method else None
        if result is None and op.symbol == "!=":
            result = self._inverted_equality(tracer, other)
        if result is None and self.payload is not None and op.symbol not in ("is",):
            payload = other.payload if isinstance(other, ObjectValue) and other.payload is not None else other
            return self.payload.binary(tracer, op, payload, reflected)
        if result is not None:
            result = result.realize()
            if isinstance(result, ConstantValue) and result.content is NotImplemented:
                return None
        return result

    def _inverted_equality(self, tracer: Tracer, other: Value) -> Value | None:
        result = self._special(tracer, "__eq__", other)
        if result is None:
            return None
        result = result.realize()
        if isinstance(result, ConstantValue) and result.content is NotImplemented:
            return None
        return ConstantValue(not protocols.truth(tracer, result))

    def unary(self, tracer: Tracer, function: Callable[[Any], Any], method: str) -> Value:
        result = self._special(tracer, method)
        return result if result is not None else super().unary(tracer, function, method)

    def text(self, tracer: Tracer, conversion: str) -> str:
        names = ("__repr__",) if conversion == "repr" else ("__str__", "__repr__")
        for name in names:
            result = self._special(tracer, name)
            if result is not None:
                return protocols.as_string(tracer, result)
            if name == "__str__" and lookup(self.cls, "__str__") is not object.__str__:
                break
        if self.payload is not None:
            return self.payload.text(tracer, conversion)
        return super().text(tracer, conversion)

    def format(self, tracer: Tracer, spec: str) -> str | None:
        result = self._special(tracer, "__format__", ConstantValue(spec))
        return None if result is None else protocols.as_string(tracer, result)

    # After the call.

    def parts(self) -> Iterable[Value]:
        stored = [value for value in self.attrs.values() if value is not None]
        if self.source is None and self.payload is not None:
            stored.append(self.payload)
        return [*stored, *self.new_args]

    def name_hint(self) -> str:
        return self.cls.__name__.lower()

    def rebuild_empty(self, emitter: Emitter) -> str:
        from bothways.capture.values.construction import rebuild_new

        return rebuild_new(self, emitter)

    def fill(self, emitter: Emitter, name: str) -> None:
        from bothways.capture.values.construction import fill_payload

        fill_payload(self, emitter, name)
        for attribute, value in self.attrs.items():
            if value is not None:
                emitter.build(self._store(emitter, name, attribute, emitter.rebuild(value)))

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        name = emitter.read(self.source)
        for attribute, value in self.attrs.items():
            if value is not None:
                emitter.effect(self._store(emitter, name, attribute, emitter.rebuild(value)))
            elif attribute in self.instance_dict() or hasattr(self.obj, attribute):
                emitter.effect(f"object.__delattr__({name}, {attribute!r})")

    def _store(self, emitter: Emitter, name: str, attribute: str, value: str) -> str:
        custom = isinstance(lookup(self.cls, "__setattr__"), types.FunctionType)
        found = lookup(self.cls, attribute)
        if attribute.isidentifier() and not custom and (found is MISSING or not is_data_descriptor(found)):
            return f"{name}.{attribute} = {value}"
        return f"object.__setattr__({name}, {attribute!r}, {value})"


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
