"""Handlers for Python's built-in functions and for the functions of ``operator``, over Values."""

from __future__ import annotations

import builtins
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.guards import WeakIdentity
from bothways.capture.values.code.type_checks import isinstance_of, issubclass_of
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.iterators import CallIterator
from bothways.capture.values.collections.sorting import sort_values
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.answers import answered
from bothways.capture.values.core.base import NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.methods import is_callable, is_none, none
from bothways.capture.values.core.numbers import NumberValue, extreme_of
from bothways.capture.values.core.wording import name_in_c

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


# Size, truth and text.


@handles(len)
def _len(tracer: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, linked.TensorValue) and tracer.overrides.leaves_tensors_alone:
        return constant_value(value.first_size(tracer))
    growing = value.length_value(tracer)
    return ConstantValue(protocols.length(tracer, value)) if growing is None else growing


@handles(any)
def _any(tracer: Tracer, iterable: Value) -> Value:
    return ConstantValue(any(protocols.truth(tracer, item) for item in _each(tracer, iterable)))


@handles(all)
def _all(tracer: Tracer, iterable: Value) -> Value:
    return ConstantValue(all(protocols.truth(tracer, item) for item in _each(tracer, iterable)))


def _each(tracer: Tracer, iterable: Value) -> Iterator[Value]:
    return protocols.elements(tracer, protocols.iterate(tracer, iterable))


@handles(callable)
def _callable(tracer: Tracer, value: Value) -> Value:
    return ConstantValue(is_callable(value))


@handles(repr)
def _repr(tracer: Tracer, value: Value) -> Value:
    return protocols.shown(tracer, value, "repr")


@handles(ascii)
def _ascii(tracer: Tracer, value: Value) -> Value:
    text = protocols.text(tracer, value, "repr")
    return ConstantValue(text.encode("ascii", "backslashreplace").decode("ascii"))


@handles(format)
def _format(tracer: Tracer, value: Value, spec: Value | None = None) -> Value:
    wanted = "" if spec is None else protocols.as_string(tracer, spec)
    return protocols.formatted(tracer, value, wanted)


@handles(hash)
def _hash(tracer: Tracer, value: Value) -> Value:
    value = value.realize()
    value.hash_key(tracer)  # complains about what has no hash
    try:
        return ConstantValue(tracer.run_const(hash, value.constant()))
    except NotConstant:
        return answered(tracer, value.python_type(), "__hash__", protocols.call_attr(tracer, value, "__hash__"))


# Numbers.


@handles(abs)
def _abs(tracer: Tracer, value: Value) -> Value:
    return protocols.unary(tracer, "abs", value)


@handles(round)
def _round(tracer: Tracer, number: Value, ndigits: Value | None = None) -> Value:
    number = number.realize()
    arguments = [] if ndigits is None or is_none(ndigits) else [ndigits]
    known = linked.derived(tracer, round, [number, *arguments]) if isinstance(number, NumberValue) else None
    if known is not None:
        return known
    if isinstance(number, ConstantValue):
        digits = [protocols.as_constant(tracer, digit) for digit in arguments]
        return constant_value(tracer.run_const(round, number.content, *digits), tracer)
    method = protocols.try_get_attr(tracer, number, "__round__")
    if method is None:
        name = name_in_c(number.python_type())
        tracer.throw(TypeError, f"type {name} doesn't define __round__ method")
    return protocols.call(tracer, method, arguments)


@handles(divmod)
def _divmod(tracer: Tracer, left: Value, right: Value) -> Value:
    left, right = left.realize(), right.realize()
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        return constant_value(tracer.run_const(divmod, left.content, right.content), tracer)
    if isinstance(left, NumberValue) and left.python_type() is int and _divides(right):
        return TupleValue([protocols.binary(tracer, symbol, left, right) for symbol in ("//", "%")])
    are_numbers = all(isinstance(value, (NumberValue, ConstantValue)) for value in (left, right))
    if are_numbers and left.python_type() is not right.python_type():  # neither kind knows the other in both orders
        return constant_value(tracer.run_const(divmod, left.constant(), right.constant()), tracer)
    for owner, other, name in ((left, right, "__divmod__"), (right, left, "__rdivmod__")):
        if not isinstance(owner, ConstantValue) and hasattr(owner.python_type(), name):
            return protocols.call_attr(tracer, owner, name, other)
    kinds = f"{name_in_c(left.python_type())!r} and {name_in_c(right.python_type())!r}"
    tracer.throw(TypeError, f"unsupported operand type(s) for divmod(): {kinds}")


def _divides(value: Value) -> bool:
    return isinstance(value, ConstantValue) and type(value.content) is int and value.content != 0


@handles(pow)
def _pow(tracer: Tracer, base: Value, exp: Value, mod: Value | None = None) -> Value:
    if mod is None or is_none(mod):
        return protocols.binary(tracer, "**", base, exp)
    numbers = [protocols.as_constant(tracer, number) for number in (base, exp, mod)]
    return constant_value(tracer.run_const(pow, *numbers), tracer)


@handles(sum)
def _sum(tracer: Tracer, iterable: Value, /, start: Value | None = None) -> Value:
    total = (start or ConstantValue(0)).realize()
    if isinstance(total, ConstantValue):
        tracer.run_const(sum, (), total.content)  # complains about a start that is text
    pending: list[Any] = []  # numbers are left to Python's own sum, which keeps track of what rounding loses

    def settle() -> Value:
        if not pending:
            return total
        assert isinstance(total, ConstantValue)
        return constant_value(tracer.run_const(sum, pending, total.content), tracer)

    for item in _each(tracer, iterable):
        item = item.realize()
        if isinstance(total, ConstantValue) and isinstance(item, ConstantValue):
            pending.append(item.content)
            continue
        total = protocols.binary(tracer, "+", settle(), item).realize()
        pending.clear()
    return settle()


def _extreme(name: str, symbol: str) -> Callable[..., Value]:
    def handler(
        tracer: Tracer, *args: Value, key: Value | None = None, default: Value | None = None
    ) -> Value:
        if not args:
            tracer.throw(TypeError, f"{name} expected at least 1 argument, got 0")
        if len(args) > 1 and default is not None:
            message = f"Cannot specify a default for {name}() with multiple positional arguments"
            tracer.throw(TypeError, message)
        known = linked.derived(tracer, getattr(builtins, name), args) if len(args) > 1 and is_none(key) else None
        if known is not None:
            return known
        best: Value | None = None
        best_key: Value | None = None
        for item in args if len(args) > 1 else _each(tracer, args[0]):
            if best is not None and is_none(key) and (extreme := extreme_of(tracer, name, best, item)) is not None:
                best = best_key = extreme
                continue
            item_key = item if key is None or is_none(key) else protocols.call(tracer, key, [item])
            if best_key is None or protocols.truth(
                tracer, protocols.compare(tracer, symbol, item_key, best_key)
            ):
                best, best_key = item, item_key
        if best is not None:
            return best
        if default is None:
            tracer.throw(ValueError, f"{name}() {_EMPTY}")
        return default

    return handler


def _complaint(function: Callable[..., Any], *args: Any) -> str:
    """What Python says, whose wording differs between its versions."""
    try:
        function(*args)
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError


_EMPTY = _complaint(max, []).removeprefix("max() ")
_NOT_CALLED = _complaint(iter, None, None)
handles(max)(_extreme("max", ">"))
handles(min)(_extreme("min", "<"))


# Iteration.


@handles(sorted)
def _sorted(
    tracer: Tracer, iterable: Value, /, *, key: Value | None = None, reverse: Value | None = None
) -> Value:
    return ListValue(sort_values(tracer, protocols.unpack(tracer, iterable), key, reverse))


@handles(iter)
def _iter(tracer: Tracer, value: Value, sentinel: Value | None = None) -> Value:
    if sentinel is None:
        return protocols.iterate(tracer, value)
    if not _callable(tracer, value).constant():
        tracer.throw(TypeError, _NOT_CALLED)
    return CallIterator(value, sentinel)


@handles(next)
def _next(tracer: Tracer, iterator: Value, default: Value | None = None) -> Value:
    if default is None:
        return iterator.realize().next(tracer)
    item = protocols.next_or_none(tracer, iterator)
    return item if item is not None else default


# Attributes and classes.


@handles(isinstance)
def _isinstance(tracer: Tracer, value: Value, classes: Value) -> Value:
    return ConstantValue(isinstance_of(tracer, value, classes))


@handles(issubclass)
def _issubclass(tracer: Tracer, cls: Value, classes: Value) -> Value:
    return ConstantValue(issubclass_of(tracer, cls, classes))


def _attribute_name(tracer: Tracer, name: Value) -> str:
    kind = name.realize().python_type()
    if not issubclass(kind, str):
        tracer.throw(TypeError, f"attribute name must be string, not {name_in_c(kind)!r}")
    return protocols.as_string(tracer, name)


@handles(hasattr)
def _hasattr(tracer: Tracer, value: Value, name: Value) -> Value:
    return ConstantValue(protocols.try_get_attr(tracer, value, _attribute_name(tracer, name)) is not None)


@handles(getattr)
def _getattr(tracer: Tracer, value: Value, name: Value, default: Value | None = None) -> Value:
    wanted = _attribute_name(tracer, name)
    if default is None:
        return protocols.get_attr(tracer, value, wanted)
    attribute = protocols.try_get_attr(tracer, value, wanted)
    return attribute if attribute is not None else default


@handles(setattr)
def _setattr(tracer: Tracer, value: Value, name: Value, content: Value) -> Value:
    value.realize().set_attr(tracer, _attribute_name(tracer, name), content)
    return none()


@handles(delattr)
def _delattr(tracer: Tracer, value: Value, name: Value) -> Value:
    value.realize().del_attr(tracer, _attribute_name(tracer, name))
    return none()


@handles(vars)
def _vars(tracer: Tracer, value: Value | None = None) -> Value:
    if value is None:
        tracer.stop("call_unknown", "vars() without an argument is not supported")
    attributes = protocols.try_get_attr(tracer, value, "__dict__")
    if attributes is None:
        tracer.throw(TypeError, "vars() argument must have __dict__ attribute")
    return attributes


@handles(id)
def _id(tracer: Tracer, value: Value) -> Value:
    """Where an object from outside lies; the program is for that object alone."""
    value = value.realize()
    obj = tracer.object_of(value)
    if isinstance(obj, type):
        return ConstantValue(id(obj))  # a class is guarded by identity anyway
    if obj is None or value.source is None or isinstance(value, ConstantValue):
        tracer.stop("call_unknown", f"id() of {value.describe()}")
    try:
        weakref.ref(obj)
    except TypeError:
        tracer.stop("call_unknown", f"id() is asked of {value.describe()}, whose end the program would not notice")
    tracer.guard("{s0} is {c0}", value.source, WeakIdentity(obj))
    return ConstantValue(id(obj))


# What reaches outside of the program, or depends on where objects lie in memory.

_OUTSIDE = {
    print: "print() writes output",
    input: "input() waits for input",
    open: "open() opens a file",
    builtins.dir: "dir() is not supported",
    builtins.locals: "locals() is not supported",
    builtins.globals: "globals() is not supported",
    builtins.eval: "eval() runs code that is not known",
    builtins.exec: "exec() runs code that is not known",
    builtins.compile: "compile() is not supported",
    builtins.__import__: "an import runs code that is not known",
}


def _outside(code: str, reason: str) -> Callable[..., Value]:
    def handler(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        tracer.stop(code, reason)

    return handler


for _function, _reason in _OUTSIDE.items():
    handles(_function)(_outside("call_unknown", f"{_reason} (builtin: {_function.__name__})"))
handles(builtins.__build_class__)(_outside("class_definition", "a class is defined inside the function"))
for _debugger in (breakpoint, sys.__breakpointhook__):
    handles(_debugger)(_outside("debugger", f"{_debugger.__name__}() waits for a person"))


# The functions of ``operator``.


def _operation(apply: Callable[..., Value], symbol: str) -> Callable[..., Value]:
    def handler(tracer: Tracer, left: Value, right: Value, /) -> Value:
        return apply(tracer, symbol, left, right)

    return handler


def _unary_operation(symbol: str) -> Callable[..., Value]:
    def handler(tracer: Tracer, operand: Value, /) -> Value:
        return protocols.unary(tracer, symbol, operand)

    return handler


for _op in [*protocols.BINARY.values(), *protocols.INPLACE.values()]:
    handles(_op.function)(_operation(protocols.binary, _op.symbol))
for _op in protocols.COMPARE.values():
    handles(_op.function)(_operation(protocols.compare, _op.symbol))
for _symbol, (_function, _) in protocols.UNARY.items():
    handles(_function)(_unary_operation(_symbol))


@handles(operator.truth)
def _truth(tracer: Tracer, value: Value) -> Value:
    return ConstantValue(protocols.truth(tracer, value))


@handles(operator.not_)
def _not(tracer: Tracer, value: Value) -> Value:
    return ConstantValue(not protocols.truth(tracer, value))


@handles(operator.is_)
def _is(tracer: Tracer, left: Value, right: Value) -> Value:
    return ConstantValue(protocols.same_object(tracer, left, right))


@handles(operator.is_not)
def _is_not(tracer: Tracer, left: Value, right: Value) -> Value:
    return ConstantValue(not protocols.same_object(tracer, left, right))


@handles(operator.index)
def _index(tracer: Tracer, value: Value) -> Value:
    protocols.leave_to_python_if_it_varies(tracer, value.realize())
    return ConstantValue(protocols.as_index(tracer, value))


@handles(operator.getitem)
def _getitem(tracer: Tracer, container: Value, key: Value) -> Value:
    return container.realize().get_item(tracer, key.realize())


@handles(operator.setitem)
def _setitem(tracer: Tracer, container: Value, key: Value, value: Value) -> Value:
    container.realize().set_item(tracer, key.realize(), value)
    return none()


@handles(operator.delitem)
def _delitem(tracer: Tracer, container: Value, key: Value) -> Value:
    container.realize().del_item(tracer, key.realize())
    return none()


@handles(operator.contains)
def _contains(tracer: Tracer, container: Value, item: Value) -> Value:
    return ConstantValue(protocols.contains(tracer, container, item))
