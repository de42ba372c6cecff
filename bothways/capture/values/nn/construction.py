"""Making instances: what calling a class does, and how an instance made inside is rebuilt outside.

``__new__`` and ``__init__`` written in Python are inlined; the built-in bases give the instance its payload.
"""

from __future__ import annotations

import collections
import enum
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture import standins
from bothways.capture.overrides.overrides import PASSED, overridden
from bothways.capture.values.code import object_methods
from bothways.capture.values.code.attributes import HEAP_TYPE, MISSING, bind_class_attribute, lookup
from bothways.capture.values.code.classes import ClassValue, make_super
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.deques import DequeValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import linked, numpy_numbers, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments, constant_value, is_constant_type
from bothways.capture.values.core.handlers import HANDLERS
from bothways.capture.values.nn.modules import ModuleValue
from bothways.capture.values.objects.exceptions import ExceptionValue
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.objects.simple_namespaces import SimpleNamespaceValue
from bothways.capture.values.tensors.tensor_subclasses import new_tensor
from bothways.source_text import described

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

# Built-in bases a user class may extend; the instance then holds one of these as its payload.
PAYLOADS: tuple[type, ...] = (
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
    dict,
    list,
    tuple,
    set,
    frozenset,
    int,
    float,
    str,
)
IMMUTABLE_PAYLOADS: tuple[type, ...] = (tuple, frozenset, int, float, str)

# Classes whose instances are plain facts: calling them with constants is done at capture time.
FOLDED_CLASSES: tuple[type, ...] = (torch.device, torch.finfo, torch.iinfo, *numpy_numbers.FACTS)


def builtin_base(cls: type) -> type:
    """The first class of the MRO that is implemented in C; some of those are heap types, in some versions."""
    return next(base for base in cls.__mro__ if base in PAYLOADS or not base.__flags__ & HEAP_TYPE)


def construct(tracer: Tracer, target: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """``cls(*args, **kwargs)``."""
    cls = target.cls
    if cls is super:
        return make_super(tracer, args)
    special = HANDLERS.get(cls)
    if special is not None:
        return special(tracer, args, kwargs)
    stand_in = standins.find(cls)
    if stand_in is not None:
        return protocols.call(tracer, linked.library_value(tracer, stand_in), args, kwargs)
    if cls is torch.device:
        result = overridden(tracer, torch.device, args, kwargs)
        if result is not PASSED:
            return result
    if typing.is_typeddict(cls):
        return HANDLERS[dict](tracer, args, kwargs)
    if cls.__module__ == "torch.return_types" and len(args) == 1 and not kwargs:
        items = protocols.unpack(tracer, args[0])
        tracer.run_const(cls, [None] * len(items))  # complains about their number
        return TupleValue(items, cls)
    if issubclass(cls, enum.Enum) or cls in FOLDED_CLASSES:
        positional, keywords = constant_arguments(tracer, args, kwargs)
        return ConstantValue(tracer.run_const(cls, *positional, **keywords))
    custom = lookup(type(cls), "__call__")
    if isinstance(custom, types.FunctionType):
        return protocols.call(tracer, linked.library_value(tracer, custom), [target, *args], kwargs)
    return instantiate(tracer, target, args, kwargs)


def instantiate(tracer: Tracer, target: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """``type.__call__``: make with ``__new__``, then run ``__init__``."""
    cls = target.cls
    tracer.definitions.meet(cls, "__init__")
    if issubclass(cls, torch.autograd.Function) and not args and not kwargs:
        return ObjectValue(cls)  # an instance has no state; people make one to reach ``apply``
    make = lookup(cls, "__new__")
    instance: Value
    if isinstance(make, staticmethod):
        instance = protocols.call(tracer, linked.library_value(tracer, make.__func__), [target, *args], kwargs)
    elif isinstance(make, types.FunctionType):
        instance = protocols.call(tracer, linked.library_value(tracer, make), [target, *args], kwargs)
    else:
        instance = new_instance(tracer, cls, args, kwargs)
    instance = instance.realize()
    if issubclass(instance.python_type(), cls):
        _initialize(tracer, instance, cls, args, kwargs)
    return instance


def _initialize(tracer: Tracer, instance: Value, cls: type, args: Args, kwargs: Kwargs) -> None:
    initialize = lookup(cls, "__init__")
    if isinstance(initialize, types.FunctionType):
        method = bind_class_attribute(tracer, instance, cls, "__init__", initialize)
        returned = protocols.call(tracer, method, args, kwargs).realize().python_type()
        if returned is not types.NoneType:
            tracer.throw(TypeError, f"__init__() should return None, not {returned.__name__!r}")
    elif initialize is object.__init__ or issubclass(cls, torch.Tensor):
        # object.__init__ complains about arguments only when __new__ is object's as well.
        if (args or kwargs) and lookup(cls, "__new__") is object.__dict__["__new__"]:
            tracer.throw(TypeError, f"{cls.__name__}() takes no arguments")
    else:
        instance.call_method(tracer, "__init__", args, kwargs)


def new_instance(tracer: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """``base.__new__(cls, *args)`` for the C base class: an empty instance, or an immutable one with content."""
    if issubclass(cls, torch.Tensor):
        return new_tensor(tracer, cls, args, kwargs)
    if lookup(cls, "__del__") is not MISSING:
        tracer.stop("object_unknown", f"{described(cls)} is made, whose __del__ runs when nothing holds it any more")
    base = builtin_base(cls)
    if base is object:
        if not _made_by_object(cls):
            tracer.stop("object_unknown", f"{described(cls)} is made, and only C code knows what it holds")
        tracer.run_const(object.__new__, cls)  # complains about abstract classes; has no other effect
        if issubclass(cls, torch.nn.Module):
            return ModuleValue(cls)
        return ObjectValue(cls)
    if base is types.SimpleNamespace:
        return SimpleNamespaceValue(cls)
    if issubclass(base, BaseException):
        return ExceptionValue(cls, args)
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and not _has_state(cls):
        return TupleValue(protocols.unpack(tracer, args[0]) if args else [], cls)
    if cls.__module__ == "torch.return_types" and len(args) == 1 and not kwargs:
        items = protocols.unpack(tracer, args[0])
        if len(items) == cls.n_sequence_fields:  # type: ignore[attr-defined]
            return TupleValue(items, cls)
    if base not in PAYLOADS:
        tracer.stop("object_unknown", f"{described(cls)} is made, and only C code knows what it holds")
    if base in IMMUTABLE_PAYLOADS:
        payload = HANDLERS[base](tracer, args, kwargs)
    else:
        payload = HANDLERS[base](tracer, [], {})
    return ObjectValue(cls, payload=payload)


def _made_by_object(cls: type) -> bool:
    """Whether ``object.__new__`` makes instances; classes of C modules have a ``__new__`` of their own in C."""
    owners = [base for base in cls.__mro__ if "__new__" in base.__dict__]
    return all(base is object or not isinstance(base.__dict__["__new__"], types.BuiltinFunctionType) for base in owners)


def _has_state(cls: type) -> bool:
    """Whether instances of a named tuple class can carry attributes beside the fields."""
    return cls.__dictoffset__ != 0


class ClassMethodCall(Value):
    """``super().__new__`` and the like: a static C method of a base class."""

    def __init__(self, base: type, name: str) -> None:
        self.base, self.name = base, name

    def python_type(self) -> type:
        return types.BuiltinFunctionType

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return CLASS_METHODS[self.name](tracer, ClassValue.of(tracer, self.base), args, kwargs)


class BaseMethod(Value):
    """A C method of a base class bound to an object, as ``super().method`` gives it."""

    def __init__(self, owner: Value, base: type, name: str) -> None:
        self.owner, self.base, self.name = owner, base, name

    def python_type(self) -> type:
        return types.BuiltinMethodType

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        owner = self.owner.realize()
        if isinstance(owner, ObjectValue) and owner.payload is not None and self.base is not object:
            return owner.payload.call_method(tracer, self.name, args, kwargs)
        handler = object_methods.OBJECT_METHODS.get(self.name)
        if isinstance(owner, ObjectValue) and handler is not None and self.base is object:
            return handler(tracer, owner, args, kwargs)
        return owner.call_method(tracer, self.name, args, kwargs)


def _new(tracer: Tracer, owner: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """``base.__new__(cls, …)``."""
    target = args[0].realize()
    assert isinstance(target, ClassValue)
    return new_instance(tracer, target.cls, args[1:], kwargs)


def _init_subclass(tracer: Tracer, owner: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(None)


def _mro(tracer: Tracer, owner: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    return constant_value(list(owner.cls.__mro__), tracer)


def _fromkeys(tracer: Tracer, owner: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    if owner.cls not in (dict, collections.OrderedDict, collections.defaultdict):
        tracer.stop("call_unknown", f"{owner.cls.__name__}.fromkeys is not supported")
    if not 1 <= len(args) <= 2 or len(args) + len(kwargs) > 2:
        tracer.run_const(owner.cls.fromkeys, *[None] * len(args), **dict.fromkeys(kwargs))
    default = args[1] if len(args) > 1 else kwargs.get("value", ConstantValue(None))
    return DictValue.from_pairs(tracer, [(key, default) for key in protocols.unpack(tracer, args[0])], owner.cls)


def _folded(name: str) -> Callable[..., Value]:
    """A class method of a constant type (``int.from_bytes``, ``float.fromhex``), done at capture time."""

    def handler(tracer: Tracer, owner: ClassValue, args: Args, kwargs: Kwargs) -> Value:
        if not is_constant_type(owner.cls):
            tracer.stop("call_unknown", f"{owner.cls.__name__}.{name} is not supported")
        positional, keywords = constant_arguments(tracer, args, kwargs)
        return constant_value(tracer.run_const(getattr(owner.cls, name), *positional, **keywords), tracer)

    return handler


def _subclasses(tracer: Tracer, target: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """The classes that were derived so far, by their addresses: the program does not keep them alive."""
    classes: list[type] = type.__subclasses__(target.cls)
    source = tracer.inject(target.cls, target.cls.__qualname__)
    tracer.guard("(*map(id, {c0}({s0})),) == {c1}", source, type.__subclasses__, tuple(map(id, classes)))
    return ListValue([ClassValue.of(tracer, cls) for cls in classes])


CLASS_METHODS: dict[str, Callable[..., Value]] = {
    "__subclasses__": _subclasses,
    "__call__": instantiate,
    "__new__": _new,
    "__init_subclass__": _init_subclass,
    "mro": _mro,
    "fromkeys": _fromkeys,
    "from_bytes": _folded("from_bytes"),
    "fromhex": _folded("fromhex"),
    "maketrans": _folded("maketrans"),
}


def rebuild_new(value: ObjectValue, emitter: Emitter) -> str:
    """The expression that makes an instance without running its ``__init__`` a second time."""
    cls = emitter.inject(value.cls, value.cls.__qualname__)
    base = builtin_base(value.cls)
    if base is object:
        return f"object.__new__({cls})"
    new = f"{emitter.inject(base, base.__qualname__)}.__new__"
    if base in IMMUTABLE_PAYLOADS and value.payload is not None:
        return f"{new}({cls}, {emitter.rebuild(value.payload)})"
    return f"{new}({cls}{''.join(f', {emitter.rebuild(arg)}' for arg in value.new_args)})"


_FILLERS: dict[type, str] = {list: "extend", set: "update", dict: "update", collections.deque: "extend"}


def fill_payload(value: ObjectValue, emitter: Emitter, name: str) -> None:
    base = builtin_base(value.cls)
    if value.payload is None or base in IMMUTABLE_PAYLOADS:
        return
    # The base class's own method: the user's override already ran at capture time.
    plain = next(kind for kind in _FILLERS if issubclass(base, kind))
    holder = emitter.inject(base, base.__qualname__)
    content = emitter.rebuild(value.payload)
    if isinstance(value.payload, DequeValue):
        emitter.build(f"{holder}.__init__({name}, {content}, {value.payload.maxlen})")
    elif base is collections.OrderedDict or base is collections.defaultdict:
        emitter.build(f"{holder}.__init__({name}, {_factory(value, emitter)}{content})")
    else:
        emitter.build(f"{holder}.{_FILLERS[plain]}({name}, {content})")


def _factory(value: ObjectValue, emitter: Emitter) -> str:
    factory: Any = getattr(value.payload, "default_factory", MISSING)
    if factory is MISSING or builtin_base(value.cls) is not collections.defaultdict:
        return ""
    return f"{emitter.rebuild(factory) if isinstance(factory, Value) else None}, "
