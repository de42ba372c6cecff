"""Attributes of classes, found along the MRO the way Python finds them and bound to who asked.

``lookup`` runs no code and sees the real class; ``find_class_attribute`` also sees what captured code stored on
it. What is found is guarded where it is bound, so a class that changes later is noticed.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import namedtuple
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.capture.guards import policy
from bothways.capture.guards.sources import Attr, Item
from bothways.capture.values.code.functions import FunctionValue, MethodValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import NotConstant, Value
from bothways.capture.values.core.class_guards import guard_class_attribute, guard_class_lacks
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.capture.values.core.wording import name_in_c

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer



class Missing:
    """Nothing at all, which is no object of the user's."""

    def __repr__(self) -> str:
        return "missing"


MISSING: object = Missing()
HEAP_TYPE = 1 << 9  # the flag of classes that are made at run time: by Python, and by some C modules
C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
FIELD_GETTER = type(namedtuple("Example", "field").field)  # type: ignore[attr-defined]  # reads one element of a tuple
C_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)


@dataclass(frozen=True)
class Stored:
    """A class attribute that captured code stored; the real class does not have it yet."""

    value: Value


def lookup(cls: type, name: str) -> Any:
    """A class attribute found along the MRO without running any code, or MISSING."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def find_class_attribute(tracer: Tracer, cls: type, name: str) -> Any:
    """What ``lookup`` finds, or what captured code put in its place."""
    tracer.definitions.meet(cls, name)
    for base in cls.__mro__:
        known = tracer.known(base)
        if isinstance(known, linked.ClassValue) and name in known.attrs:
            stored = known.attrs[name]
            if stored is not None:
                return Stored(stored)
        elif name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def is_data_descriptor(attribute: Any) -> bool:
    kind = type(attribute)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def bind_class_attribute(tracer: Tracer, owner: Value, cls: type, name: str, attribute: Any) -> Value:
    """What ``owner.name`` gives when the class (or ``super``) has ``attribute`` and the instance does not."""
    if isinstance(attribute, Stored):
        return _bind_stored(tracer, owner, cls, name, attribute.value.realize())
    guard_class_attribute(tracer, cls, name, attribute)
    if isinstance(attribute, types.FunctionType):
        return MethodValue(linked.library_value(tracer, attribute), owner)
    if isinstance(attribute, staticmethod):
        return linked.library_value(tracer, attribute.__func__)
    if isinstance(attribute, (classmethod, types.ClassMethodDescriptorType)):
        bound_to = owner if isinstance(owner, linked.ClassValue) else linked.ClassValue.of(tracer, cls)
        if isinstance(attribute, types.ClassMethodDescriptorType):
            return linked.BoundClassMethod(bound_to, attribute)
        if isinstance(attribute.__func__, property) and sys.version_info < (3, 13):
            return _of_the_class(tracer, cls, name, attribute, bound_to)
        return MethodValue(linked.library_value(tracer, attribute.__func__), bound_to)
    if isinstance(attribute, property):
        if attribute.fget is None:
            tracer.throw(AttributeError, f"property {name!r} of {cls.__name__!r} object has no getter")
        return protocols.call(tracer, linked.library_value(tracer, attribute.fget), [owner])
    if isinstance(attribute, functools.cached_property):
        result = protocols.call(tracer, linked.library_value(tracer, attribute.func), [owner])
        protocols.get_attr(tracer, owner, "__dict__").set_item(tracer, constant_name(name), result)
        return result
    if isinstance(attribute, C_METHODS) or (isinstance(attribute, types.BuiltinFunctionType) and name == "__new__"):
        return linked.BoundBuiltin(owner, name)
    if isinstance(attribute, FIELD_GETTER):
        return protocols.call(tracer, linked.library_value(tracer, tuple.__getitem__), [owner, field_index(attribute)])
    getter = lookup(type(attribute), "__get__")
    if isinstance(getter, types.FunctionType):
        descriptor = class_entry(tracer, cls, name, attribute)
        arguments = [descriptor, owner, linked.ClassValue.of(tracer, cls)]
        return protocols.call(tracer, linked.library_value(tracer, getter), arguments)
    if getter is not MISSING:
        tracer.stop("attribute_unknown", f"{name!r} of {cls.__name__} is a {type(attribute).__name__}")
    return class_variable(tracer, cls, name, attribute)


def _of_the_class(tracer: Tracer, cls: type, name: str, attribute: Any, bound_to: Value) -> Value:
    """What a class method around a property gives: that of the class."""
    for base in cls.__mro__:
        held = tracer.inject(base, base.__qualname__)
        if name in base.__dict__:
            tracer.guard("{s0}.__dict__.get({c0}) is {c1}", held, name, attribute)
            break
        if not policy.is_library_module(base.__module__):
            tracer.guard("{c0} not in {s0}.__dict__", held, name)
    if attribute.__func__.fget is None:
        tracer.stop("attribute_unknown", f"property {name!r} of {cls.__name__!r} has no getter")
    return protocols.call(tracer, linked.library_value(tracer, attribute.__func__.fget), [bound_to])


def constant_name(name: str) -> Value:
    return ConstantValue(name)


def field_index(getter: Any) -> Value:
    """Which element of a named tuple a field's descriptor reads: its pickled form tells."""
    return ConstantValue(getter.__reduce__()[1][0])


def _bind_stored(tracer: Tracer, owner: Value, cls: type, name: str, stored: Value) -> Value:
    if isinstance(stored, FunctionValue):
        return stored if isinstance(owner, linked.ClassValue) else MethodValue(stored, owner)
    if lookup(stored.python_type(), "__get__") is not MISSING:
        tracer.stop("attribute_unknown", f"{name!r} of {cls.__name__} was replaced by {stored.describe()}")
    return stored


def class_variable(tracer: Tracer, cls: type, name: str, attribute: Any) -> Value:
    """A plain value in a class body."""
    source = Attr(tracer.inject(cls, cls.__qualname__), name)
    return tracer.member(attribute, source, "hasattr({s0}, {c0})")


def class_entry(tracer: Tracer, cls: type, name: str, attribute: Any) -> Value:
    """What a class dictionary holds, for descriptors, which reading through the class would run."""
    holder = next(base for base in cls.__mro__ if name in base.__dict__)
    source = Item(Attr(tracer.inject(holder, holder.__qualname__), "__dict__"), name)
    return tracer.member(attribute, source, "{c0} in {s0}")


def class_attribute(tracer: Tracer, owner: Value, name: str) -> Value:
    """``owner.name`` found on the owner's type alone: for kinds whose instances have no ``__dict__``."""
    cls = owner.python_type()
    if name == "__class__":
        return linked.ClassValue.of(tracer, cls)
    attribute = find_class_attribute(tracer, cls, name)
    if attribute is MISSING:
        tracer.throw(AttributeError, f"{name_in_c(cls)!r} object has no attribute {name!r}")
    if isinstance(attribute, C_FIELDS):
        try:
            content = owner.constant()
        except NotConstant:
            tracer.stop("attribute_unknown", f"cannot read {name!r} of {owner.describe()}")
        return constant_value(getattr(content, name), tracer)
    return bind_class_attribute(tracer, owner, cls, name, attribute)


def type_attribute(tracer: Tracer, owner: Value, name: str) -> Value | None:
    """A special method, looked up on the type and bound, or None."""
    owner = owner.realize()
    attribute = find_class_attribute(tracer, owner.python_type(), name)
    if attribute is MISSING or attribute is None:
        guard_class_lacks(tracer, owner.python_type())
        return None
    if not isinstance(owner, linked.ObjectValue):
        return owner.get_attr(tracer, name)  # kinds of our own answer for their special methods themselves
    return bind_class_attribute(tracer, owner, owner.python_type(), name, attribute)
