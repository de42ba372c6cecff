"""Handlers for calls of built-in types: numbers, text, containers, iterators."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import TYPE_CHECKING

from bothways.capture.overrides.overrides import refuse_length
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.functions import MethodValue
from bothways.capture.values.collections import iterators
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.deques import DequeValue
from bothways.capture.values.collections.dict_views import ProxyValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.collections.sequences import content
from bothways.capture.values.collections.sets import SetValue
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.answers import ASKED, answered
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments, constant_value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.methods import is_callable, is_none, none
from bothways.capture.values.core.numbers import NumberValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


# Numbers and text.


@handles(bool)
def _bool(tracer: Tracer, value: Value | None = None, /) -> Value:
    if value is not None and (late := linked.late_truth(tracer, value.realize())) is not None:
        return late
    return ConstantValue(value is not None and protocols.truth(tracer, value))


def _number(kind: type, *methods: str) -> Callable[..., Value]:
    """A call of ``int`` or its kind: of constants at capture time, of anything else through its methods."""

    def handler(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        values = [arg.realize() for arg in args]
        if len(values) == 1 and not kwargs and isinstance(values[0], NumberValue):
            known = values[0] if values[0].python_type() is kind else linked.derived(tracer, kind, values)
            if known is not None:
                return known
        if len(values) == 1 and not kwargs and not isinstance(values[0], ConstantValue):
            for method in methods:
                if hasattr(values[0].python_type(), method):
                    number = protocols.call_attr(tracer, values[0], method).realize()
                    if method in ASKED:
                        number = answered(tracer, values[0].python_type(), method, number)
                    if method == methods[0] or issubclass(number.python_type(), kind):
                        return number
                    return constant_value(tracer.run_const(kind, protocols.as_constant(tracer, number)), tracer)
        payloads = [content(value) for value in values]
        positional, keywords = constant_arguments(tracer, payloads, kwargs)
        return constant_value(tracer.run_const(kind, *positional, **keywords), tracer)

    return handler


handles(int)(_number(int, "__int__", "__index__", "__trunc__"))
handles(float)(_number(float, "__float__", "__index__"))
handles(complex)(_number(complex, "__complex__", "__float__", "__index__"))
handles(bytes)(_number(bytes, "__bytes__"))


@handles(str)
def _str(tracer: Tracer, object: Value | None = None, *rest: Value, **kwargs: Value) -> Value:
    if object is None and not kwargs:
        return ConstantValue("")
    if object is not None and not rest and not kwargs:
        return protocols.shown(tracer, object, "str")
    first = [object] if object is not None else []
    positional, keywords = constant_arguments(tracer, [*first, *rest], kwargs)
    return constant_value(tracer.run_const(str, *positional, **keywords), tracer)


@handles(type)
def _type(tracer: Tracer, value: Value, *definition: Value, **kwargs: Value) -> Value:
    if definition or kwargs:
        tracer.stop("class_definition", "a class is made with type()")
    return ClassValue.of(tracer, value.realize().python_type())


@handles(range)
def _range(tracer: Tracer, *bounds: Value) -> Value:
    numbers = [protocols.as_index(tracer, bound) for bound in bounds]
    return ConstantValue(tracer.run_const(range, *numbers))


@handles(slice)
def _slice(tracer: Tracer, first: Value, second: Value | None = None, third: Value | None = None) -> Value:
    if second is None:
        return SliceValue([none(), first, none()])
    return SliceValue([first, second, third or none()])


# Containers.


@handles(list)
def _list(tracer: Tracer, iterable: Value | None = None, /) -> Value:
    result = ListValue([])
    if iterable is not None:
        refuse_length(tracer, iterable)
        result.extend_with(tracer, iterable)
    return result


@handles(tuple)
def _tuple(tracer: Tracer, iterable: Value | None = None, /) -> Value:
    if iterable is None:
        return TupleValue([])
    known = iterable.realize()
    if isinstance(known, TupleValue) and known.kind is tuple:
        return known
    refuse_length(tracer, known)
    return TupleValue(protocols.unpack(tracer, known))


@handles(set)
def _set(tracer: Tracer, iterable: Value | None = None, /) -> Value:
    return _new_set(tracer, iterable, set)


@handles(frozenset)
def _frozenset(tracer: Tracer, iterable: Value | None = None, /) -> Value:
    known = iterable.realize() if iterable is not None else None
    if isinstance(known, SetValue) and known.kind is frozenset:
        return known
    return _new_set(tracer, known, frozenset)


def _new_set(tracer: Tracer, iterable: Value | None, kind: type) -> Value:
    if iterable is None:
        return SetValue(kind)
    known = content(iterable)
    if isinstance(known, SetValue):
        return known.copy(tracer, kind)
    return SetValue.of(tracer, protocols.unpack(tracer, iterable), kind)


def _new_dict(kind: type) -> Callable[..., Value]:
    def handler(tracer: Tracer, *args: Value, **items: Value) -> Value:
        if len(args) > 1:
            tracer.run_const(kind, *[()] * len(args))  # complains about their number
        result = DictValue(kind)
        result.call_method(tracer, "__init__", list(args), items)
        return result

    return handler


handles(dict)(_new_dict(dict))
handles(collections.OrderedDict)(_new_dict(collections.OrderedDict))


@handles(collections.defaultdict)
def _defaultdict(
    tracer: Tracer, default_factory: Value | None = None, /, *args: Value, **items: Value
) -> Value:
    factory = default_factory.realize() if default_factory is not None else none()
    if not is_none(factory) and not is_callable(factory):
        tracer.throw(TypeError, "first argument must be callable or None")
    result = DictValue(collections.defaultdict, factory)
    result.call_method(tracer, "update", list(args), items)
    return result


@handles(collections.deque)
def _deque(tracer: Tracer, iterable: Value | None = None, maxlen: Value | None = None) -> Value:
    result = DequeValue([])
    arguments = {"iterable": iterable, "maxlen": maxlen}
    result.call_method(
        tracer, "__init__", [], {name: value for name, value in arguments.items() if value is not None}
    )
    return result


@handles(types.MappingProxyType)
def _mapping_proxy(tracer: Tracer, mapping: Value) -> Value:
    known = content(mapping)
    if not isinstance(known, DictValue):
        tracer.stop("call_unknown", f"a read-only view of {known.describe()} is not supported")
    return ProxyValue(known)


# Iterators.


@handles(zip)
def _zip(tracer: Tracer, *iterables: Value, strict: Value | None = None) -> Value:
    exact = strict is not None and protocols.truth(tracer, strict)
    return iterators.ZipIterator([protocols.iterate(tracer, it) for it in iterables], exact)


@handles(map)
def _map(tracer: Tracer, function: Value, first: Value, /, *others: Value) -> Value:
    return iterators.MapIterator(function, [protocols.iterate(tracer, it) for it in (first, *others)])


@handles(filter)
def _filter(tracer: Tracer, function: Value, iterable: Value, /) -> Value:
    return iterators.FilterIterator(function, protocols.iterate(tracer, iterable))


@handles(enumerate)
def _enumerate(tracer: Tracer, iterable: Value, start: Value | None = None) -> Value:
    first = 0 if start is None else protocols.as_index(tracer, start)
    return iterators.EnumerateIterator(protocols.iterate(tracer, iterable), first)


@handles(reversed)
def _reversed(tracer: Tracer, sequence: Value, /) -> Value:
    return iterators.reversed_iterator(tracer, sequence)


# Functions.


@handles(types.MethodType)
def _method(tracer: Tracer, function: Value, instance: Value, /) -> Value:
    return MethodValue(function, instance)
