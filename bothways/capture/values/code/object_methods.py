"""The methods every object inherits from ``object``, for instances of user classes."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from bothways.capture.values.code.attributes import lookup
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.class_guards import guard_class_attribute
from bothways.capture.values.core.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.objects.objects import ObjectValue


# Where dataclasses and reprlib keep the wrapper that stops a ``__repr__`` from running inside itself.
_REPR_WRAPPERS = frozenset((dataclasses.__file__, reprlib.__file__))


def call_repr(tracer: Tracer, owner: ObjectValue) -> Value | None:
    """``__repr__`` written in Python, or None; the wrapper that asks for the object's address is looked through."""
    method = lookup(owner.cls, "__repr__")
    code = getattr(method, "__code__", None)
    if code is None or code.co_filename not in _REPR_WRAPPERS or not hasattr(method, "__wrapped__"):
        return owner.special(tracer, "__repr__")
    if owner.printing:
        return ConstantValue("...")
    guard_class_attribute(tracer, owner.cls, "__repr__", method)
    owner.printing = True
    try:
        return protocols.call(tracer, linked.library_value(tracer, method.__wrapped__), [owner])
    finally:
        owner.printing = False


def _getattribute(tracer: Tracer, owner: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    return owner.generic_get_attr(tracer, protocols.as_string(tracer, args[0]))


def _setattr(tracer: Tracer, owner: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    owner.generic_set_attr(tracer, protocols.as_string(tracer, args[0]), args[1])
    return ConstantValue(None)


def _delattr(tracer: Tracer, owner: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    owner.generic_set_attr(tracer, protocols.as_string(tracer, args[0]), None)
    return ConstantValue(None)


def _nothing(tracer: Tracer, owner: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(None)


def _identity_comparison(expected: bool) -> Callable[..., Value]:
    def handler(tracer: Tracer, owner: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
        if protocols.same_object(tracer, owner, args[0]):
            return ConstantValue(expected)
        return ConstantValue(NotImplemented)

    return handler


def _format(tracer: Tracer, owner: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(format(protocols.text(tracer, owner), protocols.as_string(tracer, args[0])))


def _str(tracer: Tracer, owner: ObjectValue, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(owner.text(tracer, "repr"))


OBJECT_METHODS: dict[str, Callable[..., Value]] = {
    "__getattribute__": _getattribute,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__init__": _nothing,
    "__init_subclass__": _nothing,
    "__eq__": _identity_comparison(True),
    "__ne__": _identity_comparison(False),
    "__format__": _format,
    "__str__": _str,
}
