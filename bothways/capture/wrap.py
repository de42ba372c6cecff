"""From a real object to its Value: what kind it is, and which guards that takes.

``look_at`` is for objects reached by a Source that may hold something else next time; ``library_value`` for
objects that are facts (builtins, library functions, class attributes already guarded).
"""

from __future__ import annotations

import collections
import functools
import logging
import random
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.guards import policy
from bothways.capture.guards.sources import Attr, Item, Source
from bothways.capture.values.autograd.autograd_contexts import RealContext
from bothways.capture.values.code.attributes import lookup
from bothways.capture.values.code.cached_functions import CachedFunction
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.functions import FunctionValue, MethodValue, library_function
from bothways.capture.values.code.namespaces import NamespaceValue
from bothways.capture.values.code.partials import PartialValue
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.deques import DequeValue
from bothways.capture.values.collections.dict_views import ProxyValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.collections.sets import SetValue
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.collections.weakrefs import WeakrefValue
from bothways.capture.values.core import numpy_numbers
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import (
    CONSTANT_TYPES,
    ConstantValue,
    constant_value,
    guard_constant,
    is_constant_type,
)
from bothways.capture.values.core.handlers import HANDLERS
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.core.numpy_values import number_from_outside
from bothways.capture.values.higher_order import triton_kernels
from bothways.capture.values.nn.construction import PAYLOADS, builtin_base
from bothways.capture.values.nn.modules import ModuleValue
from bothways.capture.values.objects.builtins import BoundBuiltin, BoundClassMethod, BuiltinValue, handled_class_method
from bothways.capture.values.objects.exceptions import ExceptionValue
from bothways.capture.values.objects.messages import LoggerValue
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.objects.simple_namespaces import SimpleNamespaceValue
from bothways.capture.values.objects.thread_locals import ThreadLocalValue
from bothways.capture.values.tensors.array_values import ArrayValue
from bothways.capture.values.tensors.attention_params import AttentionParams
from bothways.capture.values.tensors.numpy_random import NumpyRandomValue, method_of_generator
from bothways.capture.values.tensors.random_numbers import RandomValue
from bothways.capture.values.tensors.tensor_subclasses import check_class
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.values.tensors.torch_functions import TorchFunctionValue
from bothways.capture.values.torch_state.collectives import GroupValue, ReductionValue
from bothways.capture.values.torch_state.torch_contexts import external_autocast
from bothways.runtime.dispatcher import is_compiled
from bothways.runtime.marks import Mark, mark_of
from bothways.source_text import described

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

Wrapper = Callable[["Tracer", Any, Source], Value]

C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)

# Containers that are facts where they belong to a method that is one: ``keyword.iskeyword``.
IMMUTABLE = (frozenset, tuple, str, bytes)

# What a body "asks" when it calls a compiled function: captures look through those, but to run one is something else.
COMPILED = "a compiled function"


def look_at(tracer: Tracer, obj: Any, source: Source) -> Value:
    """The Value of an object from outside, with the guards its kind needs."""
    kind = type(obj)
    wrapper = BY_TYPE.get(kind)
    if wrapper is not None:
        return wrapper(tracer, obj, source)
    if is_constant_type(kind):
        return _look_constant(tracer, obj, source)
    for base, general in BY_BASE:
        if issubclass(kind, base):  # a mock says that it is an instance of what it stands for
            return general(tracer, obj, source)
    return _instance(tracer, obj, source)


def library_value(tracer: Tracer, obj: Any) -> Value:
    """The Value of an object that is a fact: no guard."""
    known = tracer.known(obj)
    if known is not None:
        return known
    kind = type(obj)
    if kind is types.FunctionType:
        return _inner_function(tracer, obj) or library_function(tracer, obj)
    if issubclass(kind, type):
        return ClassValue.of(tracer, obj)
    if issubclass(kind, types.ModuleType):
        return NamespaceValue(obj)
    if kind is types.MethodType:
        if (drawing := method_of_generator(tracer, obj)) is not None:
            return drawing
        return MethodValue(library_value(tracer, obj.__func__), library_value(tracer, obj.__self__))
    if _is_callable_fact(obj):
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, type) and (method := handled_class_method(obj)) is not None:
            return BoundClassMethod(ClassValue.of(tracer, owner), method)
        if type(owner) in IMMUTABLE and _is_method_of(obj, owner):
            return BoundBuiltin(constant_value(owner, tracer), obj.__name__)
        return _callable(obj)
    if is_constant_type(kind):
        return ConstantValue(obj)
    if kind in (tuple, torch.Size, slice):
        return constant_value(obj, tracer)
    label = getattr(obj, "__qualname__", None) or kind.__qualname__
    return tracer.look_at(obj, tracer.inject(obj, label))


def _inner_function(tracer: Tracer, function: Any) -> Value | None:
    """The user's function behind one that bothways compiled: captures look through it."""
    if not is_compiled(function):
        return None
    tracer.assumptions.ask(COMPILED)
    return library_function(tracer, function.__wrapped__)


def _is_callable_fact(obj: Any) -> bool:
    return isinstance(
        obj,
        (
            types.BuiltinFunctionType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            types.MethodWrapperType,
            *torch_compat.OP_TYPES,
            *numpy_numbers.CALLABLES,
        ),
    )


def _callable(obj: Any) -> Value:
    if mark_of(obj) is Mark.IN_GRAPH:
        return TorchFunctionValue(obj)
    if policy.is_graph_function(obj) or (obj in HANDLERS and _is_of_torch(obj)):
        return TorchFunctionValue(obj)
    return BuiltinValue(obj)


def _is_of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or getattr(owner, "__module__", None) or ""
    return bool(module.partition(".")[0] == "torch")


def _look_constant(tracer: Tracer, obj: Any, source: Source) -> Value:
    guard_constant(tracer, obj, source)
    return ConstantValue(obj, source)


def _look_text(tracer: Tracer, obj: str, source: Source) -> Value:
    if tracer.options.is_continuation and tracer.symbols.text_changes(obj, source):
        tracer.stop("value_changes", f"{source} is another text at each call")
    return _look_constant(tracer, obj, source)


def _look_number(tracer: Tracer, obj: int | float, source: Source) -> Value:
    symbol = tracer.symbols.number(obj, source)
    return _look_constant(tracer, obj, source) if symbol is None else NumberValue(symbol, source, obj)


def _look_number_of_numpy(tracer: Tracer, obj: Any, source: Source) -> Value:
    if (number := number_from_outside(tracer, obj, source)) is not None:
        return number
    if tracer.symbols.number_varies(obj, source) and not tracer.options.fullgraph:
        tracer.stop("object_unknown", f"{source} is {described(type(obj))}, and another one at each call")
    return _look_constant(tracer, obj, source)


def _look_function(tracer: Tracer, obj: Any, source: Source) -> Value:
    if is_compiled(obj):
        tracer.assumptions.ask(COMPILED)
        return look_at(tracer, obj.__wrapped__, Attr(source, "__wrapped__"))
    return FunctionValue.external(tracer, obj, source)


def _look_method(tracer: Tracer, obj: Any, source: Source) -> Value:
    tracer.guard("type({s0}) is {c0}", source, types.MethodType)
    if type(obj.__self__) in numpy_numbers.GENERATORS:
        tracer.guard("{s0}.__name__ == {c0}", source, obj.__name__)
        return BoundBuiltin(tracer.wrap(obj.__self__, Attr(source, "__self__")), obj.__name__)
    function = tracer.wrap(obj.__func__, Attr(source, "__func__"))
    value = MethodValue(function, tracer.wrap(obj.__self__, Attr(source, "__self__")), source)
    tracer.remember(obj, value)
    return value


def _look_class(tracer: Tracer, obj: Any, source: Source) -> ClassValue:
    tracer.guard("{s0} is {c0}", source, obj)
    return ClassValue.of(tracer, obj)


def _look_namespace(tracer: Tracer, obj: Any, source: Source) -> Value:
    tracer.guard("{s0} is {c0}", source, obj)
    return NamespaceValue(obj)


def _look_callable(tracer: Tracer, obj: Any, source: Source) -> Value:
    owner = getattr(obj, "__self__", None)
    if owner is not None and not isinstance(owner, (types.ModuleType, type)) and not policy.is_graph_function(obj):
        if not _is_method_of(obj, owner):
            tracer.guard("{s0} is {c0}", source, obj)
            return BuiltinValue(obj)
        tracer.guard("type({s0}) is {c0}", source, type(obj))
        tracer.guard("{s0}.__name__ == {c0}", source, obj.__name__)
        return BoundBuiltin(tracer.wrap(owner, Attr(source, "__self__")), obj.__name__)
    if isinstance(owner, type) and (method := handled_class_method(obj)) is not None:
        tracer.guard("type({s0}) is {c0}", source, type(obj))
        tracer.guard("{s0}.__name__ == {c0}", source, obj.__name__)
        return BoundClassMethod(_look_class(tracer, owner, Attr(source, "__self__")), method)
    tracer.guard("{s0} is {c0}", source, obj)
    return _callable(obj)


def _is_method_of(obj: Any, owner: Any) -> bool:
    """Whether a bound function of C is what its owner has under its name. That of a function of pybind11 is a record
    without methods, and a class may have overridden the method that is bound."""
    method = lookup(type(owner), obj.__name__)
    return isinstance(method, C_METHODS) and bool(method.__get__(owner, type(owner)) == obj)


def _look_descriptor(tracer: Tracer, obj: Any, source: Source) -> Value:
    tracer.guard("{s0} is {c0}", source, obj)
    return BuiltinValue(obj)


def _look_tensor(tracer: Tracer, obj: Any, source: Source) -> Value:
    check_class(tracer, type(obj))
    if obj.layout is not torch.strided or obj.is_nested or obj.is_quantized or not torch_compat.has_plain_memory(obj):
        tracer.stop("tensor_subclass", f"{source} is a tensor of a special layout")
    try:
        obj.is_leaf  # noqa: B018
    except RuntimeError as error:  # one of several views, of which another was changed
        tracer.stop("object_unknown", f"autograd refuses {source}: {error}")
    return TensorValue.external(tracer, obj, source)


def _look_scripted(tracer: Tracer, obj: Any, source: Source) -> Value:
    """A function that TorchScript compiled: the Python it was compiled from."""
    original = torch_compat.scripted_from(obj)
    if original is None:
        tracer.stop("call_unknown", f"{source} is a ScriptFunction")
    tracer.guard("{s0} is {c0}", source, obj)
    return library_value(tracer, original)


def _look_slice(tracer: Tracer, obj: Any, source: Source) -> Value:
    tracer.guard("type({s0}) is {c0}", source, slice)
    return SliceValue([tracer.wrap(getattr(obj, name), Attr(source, name)) for name in ("start", "stop", "step")])


def _look_partial(tracer: Tracer, obj: Any, source: Source) -> Value:
    return PartialValue.external(tracer, obj, source)


def _look_cached(tracer: Tracer, obj: Any, source: Source) -> Value:
    return CachedFunction.external(tracer, obj, source)


def _instance(tracer: Tracer, obj: Any, source: Source) -> Value:
    """An instance of a user class."""
    cls = type(obj)
    if issubclass(cls, torch.nn.Module):
        return _look_module(tracer, obj, source)
    kernel = triton_kernels.find(tracer, obj, source)
    if kernel is not None:
        return kernel
    base = builtin_base(cls)
    tracer.guard("type({s0}) is {c0}", source, cls)
    if issubclass(cls, BaseException):
        held = Attr(source, "args")
        tracer.guard("len({s0}) == {c0}", held, len(obj.args))
        args = [tracer.wrap(arg, Item(held, index)) for index, arg in enumerate(obj.args)]
        value: ObjectValue = ExceptionValue(cls, args, obj=obj, source=source)
    elif issubclass(cls, threading.local):
        value = ThreadLocalValue(cls, obj=obj, source=source)
    elif base is object or cls is property:  # of which the type alone is asked
        value = ObjectValue(cls, obj=obj, source=source)
    elif base is types.SimpleNamespace:
        value = SimpleNamespaceValue(cls, obj=obj, source=source)
    elif base in PAYLOADS:
        payload = payload_of(tracer, obj, base, source)
        value = ObjectValue(cls, obj=obj, source=source, payload=payload)
    else:
        tracer.stop("object_unknown", f"{source} is {described(cls)}, and only C code knows what it holds")
    tracer.remember(obj, value)
    return value


def payload_of(tracer: Tracer, obj: Any, base: type, source: Source) -> Value:
    """The built-in part of an instance of a class that extends a built-in one."""
    external = _PAYLOAD_KINDS[base]
    if external is None:
        guard = {"int": "int.__index__({s0}) == {c0}", "float": "float.__float__({s0}) == {c0}"}
        template = guard.get(base.__name__, "str.__str__({s0}) == {c0}")
        content = base(obj)
        tracer.guard(template, source, content)
        return ConstantValue(content)
    value: Value = external(tracer, obj, source)
    return value


_PAYLOAD_KINDS: dict[type, Callable[..., Value] | None] = {
    collections.OrderedDict: DictValue.external,
    collections.defaultdict: DictValue.external,
    dict: DictValue.external,
    collections.deque: DequeValue.external,
    list: ListValue.external,
    tuple: TupleValue.external,
    set: SetValue.external,
    frozenset: SetValue.external,
    int: None,
    float: None,
    str: None,
}


def _look_module(tracer: Tracer, obj: Any, source: Source) -> Value:
    if isinstance(obj, torch.jit.ScriptModule):
        tracer.stop("object_unknown", f"{source} is a ScriptModule")
    original = type(obj).__dict__.get("__bothways_original__")
    if original is not None:
        tracer.assumptions.ask(COMPILED)
        # A compiled module shares its dictionary with the module it was made from; captures see that module.
        return tracer.look_at(obj._orig_mod, Attr(source, "_orig_mod"))
    return ModuleValue.external(tracer, obj, source)


def _look_named_tuple(tracer: Tracer, obj: Any, source: Source) -> Value:
    if hasattr(obj, "_fields") and type(obj).__dictoffset__ == 0:
        return TupleValue.external(tracer, obj, source)
    if type(obj).__module__ == "torch.return_types":
        return TupleValue.external(tracer, obj, source)
    return _instance(tracer, obj, source)


BY_TYPE: dict[type, Wrapper] = {
    **dict.fromkeys(CONSTANT_TYPES, _look_constant),
    str: _look_text,
    int: _look_number,
    float: _look_number,
    **dict.fromkeys(numpy_numbers.SCALARS, _look_number_of_numpy),
    **dict.fromkeys(numpy_numbers.CALLABLES, _look_callable),
    types.FunctionType: _look_function,
    types.MethodType: _look_method,
    types.ModuleType: _look_namespace,
    types.BuiltinFunctionType: _look_callable,
    types.MethodDescriptorType: _look_callable,
    types.WrapperDescriptorType: _look_callable,
    types.MethodWrapperType: _look_callable,
    types.GetSetDescriptorType: _look_descriptor,
    torch.Tensor: _look_tensor,
    torch.nn.Parameter: _look_tensor,
    list: ListValue.external,
    tuple: TupleValue.external,
    torch.Size: TupleValue.external,
    dict: DictValue.external,
    collections.OrderedDict: DictValue.external,
    collections.defaultdict: DictValue.external,
    collections.deque: DequeValue.external,
    set: SetValue.external,
    frozenset: SetValue.external,
    slice: _look_slice,
    weakref.ReferenceType: WeakrefValue.external,
    types.MappingProxyType: ProxyValue.external,
    functools.partial: _look_partial,
    type(functools.lru_cache(len)): _look_cached,
    torch.autocast: external_autocast,
    random.Random: RandomValue.external,
    **dict.fromkeys(numpy_numbers.GENERATORS, NumpyRandomValue.external),
    **dict.fromkeys(numpy_numbers.ARRAYS, ArrayValue.external),
    torch_compat.SDPAParams: AttentionParams.external,
}

BY_BASE: tuple[tuple[type | tuple[type, ...], Wrapper], ...] = (
    (type, _look_class),
    (types.ModuleType, _look_namespace),
    (torch.Tensor, _look_tensor),
    (torch_compat.OP_TYPES, _look_callable),
    (torch.nn.Module, _look_module),
    (torch.jit.ScriptFunction, _look_scripted),
    (logging.Logger, LoggerValue.external),
    (torch.autograd.function.BackwardCFunction, RealContext.external),
    (tuple, _look_named_tuple),
    (torch_compat.PROCESS_GROUPS, GroupValue.external),
    (torch_compat.REDUCTIONS, ReductionValue.external),
)
