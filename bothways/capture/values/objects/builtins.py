"""Functions and methods that are implemented in C, as objects of the captured program.

A call goes to its handler, to its Python stand-in, to the method of its first argument, or is done at capture
time when the function is pure and all arguments are constants; anything else stops the capture.
"""

from __future__ import annotations

import cmath
import math
import operator
import os
import struct
import sys
import types
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture import standins
from bothways.capture.guards.sources import Source
from bothways.capture.values.code.attributes import lookup
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.type_checks import isinstance_of, issubclass_of
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments, constant_value
from bothways.capture.values.core.derived import FUNCTIONS as DERIVED
from bothways.capture.values.core.handlers import HANDLERS
from bothways.capture.values.core.wording import name_in_c
from bothways.runtime.nodes import Pinned

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

__all__ = ["BoundBuiltin", "BoundClassMethod", "BuiltinValue", "isinstance_of", "issubclass_of"]

METHOD_TYPES = (types.MethodDescriptorType, types.WrapperDescriptorType)


def _functions_of(*modules: types.ModuleType) -> set[Any]:
    return {
        function
        for module in modules
        for function in vars(module).values()
        if isinstance(function, types.BuiltinFunctionType)
    }


# Functions whose result follows from their arguments alone, so that constants may be computed with.
PURE: frozenset[Any] = frozenset(
    _functions_of(math, cmath, operator)
    | {chr, ord, hex, bin, oct, os.fspath}
    | {struct.pack, struct.unpack, struct.calcsize, sys.getrecursionlimit, sys.intern}
)


def is_pure(function: Any) -> bool:
    try:
        return function in PURE
    except TypeError:
        return False


def find_handler(function: Any) -> Callable[[Tracer, Args, Kwargs], Value] | None:
    """The handler of a callable, its stand-in included."""
    try:
        handler = HANDLERS.get(function)
    except TypeError:  # a method bound to something unhashable
        return None
    if handler is not None:
        return handler
    stand_in = standins.find(function)
    if stand_in is None:
        return None

    def inlined(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return protocols.call(tracer, linked.library_value(tracer, stand_in), args, kwargs)

    return inlined


def _name(function: Any) -> str:
    """A function in C as people call it: ``'time.perf_counter'``."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    if not isinstance(name, str):
        return repr(function)
    name = name.removeprefix("_VariableFunctionsClass.")  # of the module torch
    return repr(f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name)


def _set_field(tracer: Tracer, name: str, args: Args) -> Value:
    args[0].realize().set_attr(tracer, name, args[1])
    return ConstantValue(None)


# ``torch.Tensor.shape.__get__(x)`` and the like, as handlers of ``__torch_function__`` are given them.
DESCRIPTOR_CALLS: dict[str, Callable[[Tracer, str, Args], Value]] = {
    "__get__": lambda tracer, name, args: protocols.get_attr(tracer, args[0], name),
    "__set__": _set_field,
}


class BuiltinValue(Value):
    """A C function, or a method of a built-in type that is bound to nothing yet."""

    def __init__(self, function: Any, source: Source | None = None) -> None:
        self.function, self.source = function, source

    def python_type(self) -> type:
        return type(self.function)

    def constant(self) -> Any:
        return self.function

    def hash_key(self, tracer: Tracer) -> Hashable:
        return self.function

    def identity(self) -> object:
        return self.function

    def describe(self) -> str:
        return f"the built-in {_name(self.function)}"

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        attribute = tracer.run_const(getattr, self.function, name)
        if isinstance(self.function, types.GetSetDescriptorType) and name in DESCRIPTOR_CALLS:
            return BuiltinValue(attribute)
        if isinstance(attribute, types.MethodWrapperType):
            return BoundBuiltin(self, name)
        return constant_value(attribute, tracer)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__call__":
            return self.call(tracer, args, kwargs)
        return super().call_method(tracer, name, args, kwargs)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        function = self.function
        handler = find_handler(function)
        if handler is not None:
            return handler(tracer, args, kwargs)
        if isinstance(function, METHOD_TYPES):
            return self._call_on_first(tracer, args, kwargs)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, types.GetSetDescriptorType) and function.__name__ in DESCRIPTOR_CALLS:
            return DESCRIPTOR_CALLS[function.__name__](tracer, owner.__name__, args)
        if function.__name__ == "__new__" and isinstance(owner, type):
            return ClassValue.of(tracer, owner).call_method(tracer, "__new__", args, kwargs)
        if is_pure(function):
            if function in DERIVED and not kwargs and (number := linked.derived(tracer, function, args)) is not None:
                return number
            positional, keywords = constant_arguments(tracer, args, kwargs)
            return constant_value(tracer.run_const(function, *positional, **keywords), tracer)
        return super().call(tracer, args, kwargs)

    def _call_on_first(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """``list.append(x, 1)`` is ``x.append(1)`` for anything that is a list."""
        kind, name = self.function.__objclass__, self.function.__name__
        if not args:
            tracer.throw(TypeError, f"unbound method {kind.__name__}.{name}() needs an argument")
        owner = args[0].realize()
        if not issubclass(owner.python_type(), kind):
            other = name_in_c(owner.python_type())
            message = f"descriptor {name!r} for {kind.__name__!r} objects doesn't apply to a {other!r} object"
            tracer.throw(TypeError, message)
        if name in tracer.definitions.patched and issubclass(owner.python_type(), torch.Tensor):
            # The method that PyTorch had, taken before another was put in its place.
            return tracer.graph.op("call_function", Pinned(self.function), self.function, [owner, *args[1:]], kwargs)
        return owner.call_method(tracer, name, args[1:], kwargs)

    def text(self, tracer: Tracer, conversion: str) -> str:
        if " at 0x" in repr(self.function):
            return super().text(tracer, conversion)
        return repr(self.function)

    def name_hint(self) -> str:
        return getattr(self.function, "__name__", "function")

    def rebuild(self, emitter: Emitter) -> str:
        return emitter.inject(self.function, getattr(self.function, "__qualname__", "function"))


class BoundBuiltin(Value):
    """A method of a built-in type together with the object it was read from."""

    def __init__(self, owner: Value, name: str) -> None:
        self.owner, self.name = owner, name

    def python_type(self) -> type:
        if self.name.startswith("__"):
            return types.MethodWrapperType
        return types.BuiltinMethodType

    def describe(self) -> str:
        return f"the method {self.name!r} of {self.owner.describe()}"

    def hash_key(self, tracer: Tracer) -> Hashable:
        return (BoundBuiltin, self.owner.realize().identity(), self.name)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        owner = self.owner.realize()
        if self.name == "__call__":
            return owner.call(tracer, args, kwargs)
        if isinstance(owner, ClassValue):
            handler = find_handler(getattr(owner.cls, self.name))
            if handler is not None:
                return handler(tracer, args, kwargs)
        return owner.call_method(tracer, self.name, args, kwargs)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__name__":
            return ConstantValue(self.name)
        if name == "__qualname__":
            return ConstantValue(f"{self.owner.python_type().__name__}.{self.name}")
        if name == "__call__":
            return self
        return super().get_attr(tracer, name)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol not in ("==", "!=") or not isinstance(other, BoundBuiltin):
            return None
        same = self.name == other.name and protocols.same_object(tracer, self.owner, other.owner)
        return ConstantValue(same == (op.symbol == "=="))

    def parts(self) -> Iterable[Value]:
        return (self.owner,)

    def name_hint(self) -> str:
        return self.name

    def rebuild(self, emitter: Emitter) -> str:
        owner = emitter.rebuild(self.owner)
        return f"{owner}.{self.name}" if owner.isidentifier() else f"({owner}).{self.name}"  # 3.__add__ is none


class BoundClassMethod(BoundBuiltin):
    """A class method that is written in C, together with the class that it is called for."""

    def __init__(self, owner: ClassValue, function: types.ClassMethodDescriptorType) -> None:
        super().__init__(owner, function.__name__)
        self.function = function

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        handler = find_handler(self.function)
        return super().call(tracer, args, kwargs) if handler is None else handler(tracer, [self.owner, *args], kwargs)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "__qualname__":
            return ConstantValue(self._bound().__qualname__)
        return super().get_attr(tracer, name)

    def rebuild(self, emitter: Emitter) -> str:
        cls = self._owner().cls
        if lookup(cls, self.name) is self.function:
            return super().rebuild(emitter)
        bind = emitter.inject(self.function.__get__, f"bind_{self.name}")  # past what the class has in its place
        return f"{bind}(None, {emitter.rebuild(self.owner)})"

    def _bound(self) -> Any:
        return self.function.__get__(None, self._owner().cls)

    def _owner(self) -> ClassValue:
        owner = self.owner.realize()
        assert isinstance(owner, ClassValue)
        return owner


def handled_class_method(bound: Any) -> types.ClassMethodDescriptorType | None:
    """The class method of C that a bound one was read from, where calls of it go to a handler of its own."""
    owner, name = bound.__self__, bound.__name__
    for base in owner.__mro__:
        function = base.__dict__.get(name)
        if isinstance(function, types.ClassMethodDescriptorType) and function in HANDLERS:
            return function if function.__get__(None, owner) == bound else None
    return None
