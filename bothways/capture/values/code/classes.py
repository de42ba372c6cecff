"""Classes as objects: reading their attributes, calling them, and ``super()``."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards import policy
from bothways.capture.guards.sources import Source
from bothways.capture.values.code.attributes import (
    C_METHODS,
    MISSING,
    Stored,
    bind_class_attribute,
    class_entry,
    class_variable,
    find_class_attribute,
    lookup,
)
from bothways.capture.values.code.cells import CellValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.answers import answered
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.class_guards import guard_class_attribute, guard_class_lacks
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.capture.values.core.wording import name_in_c

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class ClassValue(Value):
    """A class; there is one Value per class, so that what captured code stores on it is seen everywhere."""

    def __init__(self, cls: type, source: Source | None = None) -> None:
        self.cls, self.source = cls, source
        self.attrs: dict[str, Value | None] = {}  # None stands for a deleted attribute

    @classmethod
    def of(cls, tracer: Tracer, target: type) -> ClassValue:
        known = tracer.known(target)
        if isinstance(known, ClassValue):
            return known
        tracer.definitions.meet(target)
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
        if name == "__class__":
            return ClassValue.of(tracer, type(self.cls))
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return ConstantValue(getattr(self.cls, name))
        if isinstance(self.cls, enum.EnumMeta) and name in self.cls.__members__:
            return ConstantValue(self.cls.__members__[name])
        if name == "__dict__" and self.attrs:
            tracer.stop("attribute_unknown", f"cannot read '__dict__' of {self.describe()}, which was changed")
        if name in ("__mro__", "__bases__", "__base__", "__members__", "__dict__", "__flags__"):
            return linked.library_value(tracer, getattr(self.cls, name))
        attribute = find_class_attribute(tracer, self.cls, name)
        if attribute is MISSING:
            return self._from_metaclass(tracer, name)
        if isinstance(attribute, Stored):
            return bind_class_attribute(tracer, self, self.cls, name, attribute)
        guard_class_attribute(tracer, self.cls, name, attribute)
        if isinstance(attribute, types.FunctionType):
            return linked.library_value(tracer, attribute)
        if isinstance(attribute, (staticmethod, classmethod, types.ClassMethodDescriptorType)):
            return bind_class_attribute(tracer, self, self.cls, name, attribute)
        if isinstance(attribute, types.GetSetDescriptorType):
            return linked.BuiltinValue(attribute)
        if isinstance(attribute, C_METHODS) or (isinstance(attribute, types.BuiltinFunctionType) and name == "__new__"):
            return linked.BuiltinValue(getattr(self.cls, name))
        if isinstance(attribute, property):
            return linked.library_value(tracer, attribute)
        getter = lookup(type(attribute), "__get__")
        if isinstance(getter, types.FunctionType):
            descriptor = class_entry(tracer, self.cls, name, attribute)
            return protocols.call(tracer, linked.library_value(tracer, getter), [descriptor, ConstantValue(None), self])
        return class_variable(tracer, self.cls, name, attribute)

    def _from_metaclass(self, tracer: Tracer, name: str) -> Value:
        attribute = lookup(type(self.cls), name)
        if attribute is MISSING:
            guard_class_lacks(tracer, self.cls)
            result = self._special(tracer, "__getattr__", ConstantValue(name))
            if result is not None:
                return result
            if isinstance(lookup(type(self.cls), "__getattr__"), types.FunctionType):  # a library's, as that of enums
                return linked.library_value(tracer, tracer.run_const(getattr, self.cls, name))
            tracer.throw(AttributeError, f"type object {name_in_c(self.cls)!r} has no attribute {name!r}")
        if isinstance(attribute, C_METHODS):
            return linked.BoundBuiltin(self, name)
        if name == "__annotations__" and attribute is type.__dict__[name]:
            return class_variable(tracer, self.cls, name, self._annotations(tracer))
        return bind_class_attribute(tracer, self, type(self.cls), name, attribute)

    def _annotations(self, tracer: Tracer) -> object:
        """Those of a class, made when they are first asked for: since 3.14 all, before where there are none."""
        try:
            return self.cls.__annotations__
        except Exception as error:
            tracer.stop("attribute_unknown", f"annotations of {self.describe()} raise {type(error).__name__}")

    def _special(self, tracer: Tracer, name: str, *args: Value) -> Value | None:
        """Call a special method that the user's metaclass defines; None when it has none."""
        meta = type(self.cls)
        method = lookup(meta, name)
        if not isinstance(method, types.FunctionType) or policy.is_library_module(meta.__module__):
            return None
        return protocols.call(tracer, bind_class_attribute(tracer, self, meta, name, method), list(args))

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        self._store(tracer, name, value)

    def del_attr(self, tracer: Tracer, name: str) -> None:
        held = self.attrs[name] is not None if name in self.attrs else name in self.cls.__dict__
        if not held:
            tracer.stop("mutation_unknown", f"{self.describe()} has no {name!r} of its own to delete")
        self._store(tracer, name, None)

    def _store(self, tracer: Tracer, name: str, value: Value | None) -> None:
        if name.startswith("__") or policy.is_library_module(self.cls.__module__):
            tracer.stop("mutation_unknown", f"cannot set {name!r} of {self.describe()}")
        if any(isinstance(lookup(type(self.cls), hook), types.FunctionType) for hook in ("__setattr__", "__delattr__")):
            tracer.stop("mutation_unknown", f"the metaclass of {self.describe()} has its own __setattr__")
        self.attrs[name] = value
        self.mutated = True
        tracer.effects.mutated(self)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return linked.construct(tracer, self, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        handler = linked.CLASS_METHODS.get(name)
        if handler is not None:
            return handler(tracer, self, args, kwargs)
        return super().call_method(tracer, name, args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(self.cls, enum.EnumMeta):
            return ConstantValue(tracer.run_const(lambda: self.cls[protocols.as_constant(tracer, key)]))  # type: ignore[index]
        result = self._special(tracer, "__getitem__", key)
        if result is not None:
            return result
        if isinstance(lookup(self.cls, "__class_getitem__"), types.FunctionType):
            return protocols.call_attr(tracer, self, "__class_getitem__", key)
        return constant_value(tracer.run_const(lambda: self.cls[protocols.as_constant(tracer, key)]), tracer)  # type: ignore[index]

    def iterate(self, tracer: Tracer) -> Value:
        if isinstance(self.cls, enum.EnumMeta):
            members: list[Any] = list(self.cls)
            return linked.SequenceIterator([ConstantValue(member) for member in members], types.GeneratorType)
        result = self._special(tracer, "__iter__")
        return result.realize() if result is not None else super().iterate(tracer)

    def length(self, tracer: Tracer) -> int:
        if isinstance(self.cls, enum.EnumMeta):
            return len(self.cls)
        result = self._special(tracer, "__len__")
        if result is None:
            return super().length(tracer)
        return protocols.as_index(tracer, answered(tracer, type(self.cls), "__len__", result))

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if isinstance(self.cls, enum.EnumMeta):
            wanted = protocols.as_constant(tracer, item)
            return bool(tracer.run_const(lambda: wanted in self.cls))  # type: ignore[operator]
        result = self._special(tracer, "__contains__", item)
        return protocols.truth(tracer, result) if result is not None else super().contains(tracer, item)

    def truth(self, tracer: Tracer) -> bool:
        for name in ("__bool__", "__len__"):
            result = self._special(tracer, name)
            if result is not None:
                return protocols.truth(tracer, answered(tracer, type(self.cls), name, result))
        return True

    def binary(self, tracer: Tracer, op: Any, other: Value, reflected: bool) -> Value | None:
        method = op.reflected if reflected else op.method
        result = self._special(tracer, method, other) if method else None
        if result is not None:
            result = result.realize()
            return None if isinstance(result, ConstantValue) and result.content is NotImplemented else result
        if op.symbol in ("==", "!=") and isinstance(other, ClassValue):
            return ConstantValue((self.cls is other.cls) == (op.symbol == "=="))
        if op.symbol == "|" and other.is_constant:
            pair = (other.constant(), self.cls) if reflected else (self.cls, other.constant())
            return constant_value(tracer.run_const(op.function, *pair), tracer)
        return None

    def text(self, tracer: Tracer, conversion: str) -> str:
        for name in ("__repr__",) if conversion == "repr" else ("__str__", "__repr__"):
            result = self._special(tracer, name)
            if result is not None:
                return protocols.as_string(tracer, answered(tracer, type(self.cls), name, result))
        return repr(self.cls)

    def parts(self) -> Iterable[Value]:
        return [value for value in self.attrs.values() if value is not None]

    def rebuild(self, emitter: Emitter) -> str:
        return emitter.inject(self.cls, self.cls.__qualname__)

    def emit_effects(self, emitter: Emitter) -> None:
        name = emitter.inject(self.cls, self.cls.__qualname__)
        for attribute, value in self.attrs.items():
            if value is not None:
                emitter.effect(f"setattr({name}, {attribute!r}, {emitter.rebuild(value)})")
            elif attribute in self.cls.__dict__:
                emitter.effect(f"delattr({name}, {attribute!r})")


class SuperValue(Value):
    """``super()``: attributes of the classes after ``after`` in the MRO of the object's class."""

    def __init__(self, after: type, owner: Value) -> None:
        self.after, self.owner = after, owner

    def python_type(self) -> type:
        return super

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        owner = self.owner.realize()
        on_class = isinstance(owner, ClassValue) and self.after in owner.cls.__mro__
        cls = owner.cls if isinstance(owner, ClassValue) and on_class else owner.python_type()
        mro = cls.__mro__
        for base in mro[mro.index(self.after) + 1 :]:
            if name in base.__dict__:
                attribute = base.__dict__[name]
                if isinstance(attribute, types.BuiltinFunctionType) and name in linked.CLASS_METHODS:
                    return linked.ClassMethodCall(base, name)
                if on_class and isinstance(attribute, types.FunctionType):
                    return linked.library_value(tracer, attribute)
                if isinstance(attribute, C_METHODS):
                    return _base_method(owner, base, name)
                if isinstance(attribute, (classmethod, types.ClassMethodDescriptorType)):
                    # Bound to the class that super() started from, not to the one that has the method.
                    owner = ClassValue.of(tracer, cls)
                if policy.is_library_module(base.__module__) is False:
                    guard_class_attribute(tracer, base, name, attribute)
                return bind_class_attribute(tracer, owner, base, name, attribute)
        tracer.throw(AttributeError, f"'super' object has no attribute {name!r}")


def _base_method(owner: Value, base: type, name: str) -> Value:
    """A C method of a base class, called past the overrides of the object's own class."""
    return linked.BaseMethod(owner, base, name)


def make_super(tracer: Tracer, args: Args) -> Value:
    """``super()`` and ``super(C, self)``."""
    if len(args) > 2:
        tracer.throw(TypeError, f"super() expected at most 2 arguments, got {len(args)}")
    first, owner = (args[0], args[-1]) if args else _implicit_arguments(tracer)
    after = first.realize()
    if not isinstance(after, ClassValue):
        tracer.throw(TypeError, f"super() argument 1 must be a type, not {name_in_c(after.python_type())}")
    if len(args) == 1:
        tracer.stop("call_unknown", "super() of a class alone is not supported")
    known = owner.realize()
    kinds = [known.cls] if isinstance(known, ClassValue) else []
    if not any(after.cls in kind.__mro__ for kind in [*kinds, known.python_type()]):
        tracer.throw(TypeError, _super_complaint(after.cls, known))
    return SuperValue(after.cls, owner)


def _implicit_arguments(tracer: Tracer) -> tuple[Value, Value]:
    """What ``super()`` finds in the frame that calls it: the class, and the first argument."""
    frame = tracer.running.frames[-1]
    if not frame.code.co_argcount:
        tracer.throw(RuntimeError, "super(): no arguments")
    owner = frame.locals.get(frame.code.co_varnames[0])
    if isinstance(owner, CellValue):
        owner = owner.content
    if owner is None:
        tracer.throw(RuntimeError, "super(): arg[0] deleted")
    cell = frame.locals.get("__class__")
    if cell is None:
        tracer.throw(RuntimeError, "super(): __class__ cell not found")
    if cell.content is None:
        tracer.throw(RuntimeError, "super(): empty __class__ cell")
    return cell.content, owner


def _super_complaint(after: type, owner: Value) -> str:
    if sys.version_info < (3, 13):
        return "super(type, obj): obj must be an instance or subtype of type"
    kind = owner.python_type().__name__
    shown = f"type {owner.cls.__name__}" if isinstance(owner, ClassValue) else f"instance of {kind}"
    return f"super(type, obj): obj ({shown}) is not an instance or subtype of type ({after.__name__})."
