"""Classes as objects: reading their attributes, calling them, and ``super()``."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture import policy, protocols
from bothways.capture.sources import Source
from bothways.capture.values.base import Args, Kwargs, Value
from bothways.capture.values.constants import ConstantValue, constant_value
from bothways.capture.values.objects import (
    C_METHODS,
    MISSING,
    bind_class_attribute,
    class_variable,
    guard_class_attribute,
    lookup,
)

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.tracer import Tracer


class ClassValue(Value):
    """A class; there is one Value per class, so that what captured code stores on it is seen everywhere."""

    def __init__(self, cls: type, source: Source | None = None) -> None:
        self.cls, self.source = cls, source
        self.attrs: dict[str, Value] = {}

    @classmethod
    def of(cls, tracer: Tracer, target: type) -> ClassValue:
        known = tracer.known(target)
        if isinstance(known, ClassValue):
            return known
        value = cls(target, tracer.inject(target, target.__qualname__))
        tracer.remember(target, value)
        return value

    def python_type(self) -> type:
        return type(self.cls)

    def constant(self) -> Any:
        return self.cls

    def identity(self) -> object:
        return self.cls

    def hash_key(self, tracer: Tracer) -> Hashable:
        return self.cls

    def describe(self) -> str:
        return f"the class {self.cls.__name__}"

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.values.builtins import BuiltinValue
        from bothways.capture.wrap import library_value

        if name in self.attrs:
            return self.attrs[name]
        if name == "__class__":
            return ClassValue.of(tracer, type(self.cls))
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return ConstantValue(getattr(self.cls, name))
        if isinstance(self.cls, enum.EnumMeta) and name in self.cls.__members__:
            return ConstantValue(self.cls.__members__[name])
        if name in ("__mro__", "__bases__", "__base__", "__members__", "__dict__"):
            return library_value(tracer, getattr(self.cls, name))
        attribute = lookup(self.cls, name)
        if attribute is MISSING:
            return self._from_metaclass(tracer, name)
        guard_class_attribute(tracer, self.cls, name, attribute)
        if isinstance(attribute, types.FunctionType):
            return library_value(tracer, attribute)
        if isinstance(attribute, (staticmethod, classmethod, types.ClassMethodDescriptorType)):
            return bind_class_attribute(tracer, self, self.cls, name, attribute)
        if isinstance(attribute, C_METHODS):
            return BuiltinValue(getattr(self.cls, name))
        if isinstance(attribute, property):
            return library_value(tracer, attribute)
        getter = lookup(type(attribute), "__get__")
        if isinstance(getter, types.FunctionType):
            descriptor = class_variable(tracer, self.cls, name, attribute)
            return protocols.call(tracer, library_value(tracer, getter), [descriptor, ConstantValue(None), self])
        return class_variable(tracer, self.cls, name, attribute)

    def _from_metaclass(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.values.builtins import BoundBuiltin

        attribute = lookup(type(self.cls), name)
        if attribute is MISSING:
            tracer.throw(AttributeError, f"type object {self.cls.__name__!r} has no attribute {name!r}")
        if isinstance(attribute, C_METHODS):
            return BoundBuiltin(self, name)
        return bind_class_attribute(tracer, self, type(self.cls), name, attribute)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if name.startswith("__") or policy.is_library_module(self.cls.__module__):
            tracer.stop("mutation_unknown", f"cannot set {name!r} of {self.describe()}")
        if isinstance(lookup(type(self.cls), "__setattr__"), types.FunctionType):
            tracer.stop("mutation_unknown", f"the metaclass of {self.describe()} has its own __setattr__")
        self.attrs[name] = value
        self.mutated = True
        tracer.effects.mutated(self)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        from bothways.capture.values.construction import construct

        return construct(tracer, self, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        from bothways.capture.values.construction import CLASS_METHODS

        handler = CLASS_METHODS.get(name)
        if handler is not None:
            return handler(tracer, self, args, kwargs)
        return super().call_method(tracer, name, args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(self.cls, enum.EnumMeta):
            return ConstantValue(tracer.run_const(lambda: self.cls[protocols.as_constant(tracer, key)]))  # type: ignore[index]
        if isinstance(lookup(self.cls, "__class_getitem__"), types.FunctionType):
            return protocols.call_attr(tracer, self, "__class_getitem__", key)
        return constant_value(tracer.run_const(lambda: self.cls[protocols.as_constant(tracer, key)]), tracer)  # type: ignore[index]

    def iterate(self, tracer: Tracer) -> Value:
        from bothways.capture.values.iterators import SequenceIterator

        if isinstance(self.cls, enum.EnumMeta):
            members = [ConstantValue(member) for member in self.cls]
            return SequenceIterator(list(members), types.GeneratorType)
        return super().iterate(tracer)

    def length(self, tracer: Tracer) -> int:
        return len(self.cls) if isinstance(self.cls, enum.EnumMeta) else super().length(tracer)

    def binary(self, tracer: Tracer, op: Any, other: Value, reflected: bool) -> Value | None:
        if op.symbol in ("==", "!=") and isinstance(other, ClassValue):
            return ConstantValue((self.cls is other.cls) == (op.symbol == "=="))
        if op.symbol == "|" and other.is_constant:
            pair = (other.constant(), self.cls) if reflected else (self.cls, other.constant())
            return constant_value(tracer.run_const(op.function, *pair), tracer)
        return None

    def text(self, tracer: Tracer, conversion: str) -> str:
        return repr(self.cls)

    def parts(self) -> Iterable[Value]:
        return self.attrs.values()

    def rebuild(self, emitter: Emitter) -> str:
        return emitter.inject(self.cls, self.cls.__qualname__)

    def emit_effects(self, emitter: Emitter) -> None:
        name = emitter.inject(self.cls, self.cls.__qualname__)
        for attribute, value in self.attrs.items():
            emitter.effect(f"{name}.{attribute} = {emitter.rebuild(value)}")


class SuperValue(Value):
    """``super()``: attributes of the classes after ``after`` in the MRO of the object's class."""

    def __init__(self, after: type, owner: Value) -> None:
        self.after, self.owner = after, owner

    def python_type(self) -> type:
        return super

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.values.construction import CLASS_METHODS, ClassMethodCall

        owner = self.owner.realize()
        on_class = isinstance(owner, ClassValue)
        cls = owner.cls if isinstance(owner, ClassValue) else owner.python_type()
        mro = cls.__mro__
        for base in mro[mro.index(self.after) + 1 :]:
            if name in base.__dict__:
                attribute = base.__dict__[name]
                if isinstance(attribute, (types.BuiltinFunctionType, staticmethod)) and name in CLASS_METHODS:
                    return ClassMethodCall(base, name)
                if on_class and isinstance(attribute, types.FunctionType):
                    from bothways.capture.wrap import library_value

                    return library_value(tracer, attribute)
                if isinstance(attribute, C_METHODS):
                    return _base_method(owner, base, name)
                if policy.is_library_module(base.__module__) is False:
                    guard_class_attribute(tracer, base, name, attribute)
                return bind_class_attribute(tracer, owner, base, name, attribute)
        tracer.throw(AttributeError, f"'super' object has no attribute {name!r}")


def _base_method(owner: Value, base: type, name: str) -> Value:
    """A C method of a base class, called past the overrides of the object's own class."""
    from bothways.capture.values.construction import BaseMethod

    return BaseMethod(owner, base, name)


def make_super(tracer: Tracer, args: Args) -> Value:
    """``super()`` and ``super(C, self)``."""
    from bothways.capture.values.functions import CellValue

    if args:
        after, owner = args[0].realize(), args[1]
    else:
        frame = tracer.frames[-1]
        cell = frame.locals.get("__class__")
        first = frame.code.co_varnames[0] if frame.code.co_argcount else None
        if cell is None or first is None:
            tracer.throw(RuntimeError, "super(): no arguments")
        after, owner = cell.content.realize(), frame.locals[first]
        if isinstance(owner, CellValue):
            assert owner.content is not None
            owner = owner.content
    if not isinstance(after, ClassValue):
        tracer.throw(TypeError, f"super() argument 1 must be a type, not {after.python_type().__name__}")
    known = owner.realize()
    kinds = [known.cls] if isinstance(known, ClassValue) else []
    if not any(after.cls in kind.__mro__ for kind in [*kinds, known.python_type()]):
        tracer.throw(TypeError, _super_complaint(after.cls, known))
    return SuperValue(after.cls, owner)


def _super_complaint(after: type, owner: Value) -> str:
    if sys.version_info < (3, 13):
        return "super(type, obj): obj must be an instance or subtype of type"
    kind = owner.python_type().__name__
    shown = f"type {owner.cls.__name__}" if isinstance(owner, ClassValue) else f"instance of {kind}"
    return f"super(type, obj): obj ({shown}) is not an instance or subtype of type ({after.__name__})."
