"""How methods of built-in types are called on Values: one table per type, and one for the special methods.

A row is a function of the owner, the tracer and the arguments. A call whose arguments do not fit the row's
signature is made on an empty object of the real type, so that the captured TypeError is Python's own.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from bothways.capture.values.core import protocols, wording
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.raised import Raised

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator

Method = Callable[..., Value]


def none() -> Value:
    return ConstantValue(None)


def is_none(value: Value | None) -> bool:
    """Whether an argument was left out or is None."""
    if value is None:
        return True
    value = value.realize()
    return isinstance(value, ConstantValue) and value.content is None


def is_callable(value: Value) -> bool:
    return any("__call__" in base.__dict__ for base in value.realize().python_type().__mro__)


FIELD: Any = type(vars(namedtuple("_", "field"))["field"])  # what a named tuple has for each of its names


def reject_attribute(tracer: Tracer, owner: Value, name: str) -> NoReturn:
    """Complain about a new attribute on an object that cannot have any."""
    kind = owner.python_type()
    if kind.__module__ == "builtins":
        tracer.run_const(setattr, kind(), name, None)  # raises what this version of Python says
    known = hasattr(kind, name)
    if known and isinstance(field := getattr(kind, name), FIELD):
        tracer.run_const(field.__set__, (), None)  # in words of its own
    refuse_attribute(tracer, owner, name, known)


def refuse_attribute(tracer: Tracer, owner: Value, name: str, is_known: bool) -> NoReturn:
    """Complain about an attribute that is to be stored in an object, or deleted, which cannot have any of its own."""
    kind = wording.name_in_c(owner.python_type())
    if is_known:
        tracer.throw(AttributeError, f"{kind!r} object attribute {name!r} is read-only")
    try:
        tracer.throw(AttributeError, f"{kind!r} object has no attribute {name!r}{wording.NO_PLACE}")
    except Raised as error:
        if wording.SINCE_313:
            error.value.tell(tracer, name=ConstantValue(name), obj=owner)
        raise


def call_from_table(
    tracer: Tracer,
    owner: Value,
    table: Mapping[str, Method],
    sample: object,
    name: str,
    args: Args,
    kwargs: Kwargs,
) -> Value:
    """Call the method ``name`` of a built-in type; ``sample`` is an object of that type."""
    method = table.get(name) or SPECIAL.get(name)
    if method is None:
        tracer.stop("call_unknown", f"cannot call the method {name!r} of {owner.describe()}")
    if not fits(method, 2, len(args), kwargs):
        wrong = getattr(type(sample), name)
        tracer.run_const(wrong, sample, *[None] * len(args), **dict.fromkeys(kwargs))
        tracer.stop(
            "call_unknown", f"cannot call the method {name!r} of {owner.describe()} with these arguments"
        )
    return method(owner, tracer, *args, **kwargs)


def fits(method: Method, own: int, positional: int, kwargs: Kwargs) -> bool:
    """Whether arguments fit a row's signature, whose first ``own`` parameters are not the caller's."""
    code = method.__code__
    names = code.co_varnames[own : code.co_argcount]
    optional = len(method.__defaults__ or ())
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    by_name = names[max(positional, code.co_posonlyargcount - own) :] + keywords
    if positional > len(names) and not code.co_flags & inspect.CO_VARARGS:
        return False
    if not code.co_flags & inspect.CO_VARKEYWORDS and any(k not in by_name for k in kwargs):
        return False
    required = names[positional : len(names) - optional]
    return all(name in kwargs for name in required)


def _length(owner: Value, tracer: Tracer) -> Value:
    return ConstantValue(owner.length(tracer))


def _get_item(owner: Value, tracer: Tracer, key: Value) -> Value:
    return owner.get_item(tracer, key.realize())


def _set_item(owner: Value, tracer: Tracer, key: Value, value: Value) -> Value:
    owner.set_item(tracer, key.realize(), value)
    return none()


def _del_item(owner: Value, tracer: Tracer, key: Value) -> Value:
    owner.del_item(tracer, key.realize())
    return none()


def _contains(owner: Value, tracer: Tracer, item: Value) -> Value:
    return ConstantValue(owner.contains(tracer, item.realize()))


def _iterate(owner: Value, tracer: Tracer) -> Value:
    return owner.iterate(tracer)


def _next(owner: Value, tracer: Tracer) -> Value:
    return owner.next(tracer)


def _hash(owner: Value, tracer: Tracer) -> Value:
    owner.hash_key(tracer)
    return ConstantValue(hash(protocols.as_constant(tracer, owner)))


def _format(owner: Value, tracer: Tracer, spec: Value) -> Value:
    return ConstantValue(protocols.format_value(tracer, owner, protocols.as_string(tracer, spec)))


def _text(conversion: str) -> Method:
    def method(owner: Value, tracer: Tracer) -> Value:
        return ConstantValue(owner.text(tracer, conversion))

    return method


def _operator(op: Operator, reflected: bool) -> Method:
    def method(owner: Value, tracer: Tracer, other: Value) -> Value:
        result = owner.binary(tracer, op, other.realize(), reflected)
        return result if result is not None else ConstantValue(NotImplemented)

    return method


SPECIAL: dict[str, Method] = {
    "__len__": _length,
    "__getitem__": _get_item,
    "__setitem__": _set_item,
    "__delitem__": _del_item,
    "__contains__": _contains,
    "__iter__": _iterate,
    "__next__": _next,
    "__hash__": _hash,
    "__format__": _format,
    "__str__": _text("str"),
    "__repr__": _text("repr"),
    **{op.reflected: _operator(op, True) for op in protocols.BINARY.values()},
    **{op.method: _operator(op, False) for op in protocols.BINARY.values()},
    **{op.method: _operator(op, False) for op in protocols.INPLACE.values()},
    **{op.method: _operator(op, False) for op in protocols.COMPARE.values()},
}
