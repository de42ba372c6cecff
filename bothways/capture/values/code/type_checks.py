"""``isinstance`` and ``issubclass`` over Values."""

from __future__ import annotations

import abc
import types
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Metaclasses whose verdict on an object follows from the object's type.
_BY_TYPE: tuple[Any, ...] = (
    type.__instancecheck__,
    abc.ABCMeta.__instancecheck__,
    type(typing.Protocol).__instancecheck__,
    type(torch.nn.Parameter).__instancecheck__,
    type(torch.nn.Buffer).__instancecheck__,
)


def isinstance_of(tracer: Tracer, value: Value, classes: Value) -> bool:
    """``isinstance(value, classes)``."""
    value = value.realize()
    return any(_is_instance(tracer, value, cls) for cls in _classes(tracer, classes, "isinstance"))


def issubclass_of(tracer: Tracer, candidate: Value, classes: Value) -> bool:
    """``issubclass(candidate, classes)``."""
    try:
        cls = candidate.realize().constant()
    except NotConstant:
        cls = None
    if not isinstance(cls, type):
        tracer.throw(TypeError, "issubclass() arg 1 must be a class")
    return any(_is_subclass(tracer, cls, parent) for parent in _classes(tracer, classes, "issubclass"))


def _is_subclass(tracer: Tracer, cls: type, parent: Any) -> bool:
    """``issubclass(cls, parent)``; a class that says no may be told otherwise by ``register``."""
    verdict = bool(tracer.run_const(issubclass, cls, parent))
    if not verdict and isinstance(parent, abc.ABCMeta):
        tracer.definitions.refuse(cls, parent)
    return verdict


def _classes(tracer: Tracer, classes: Value, function: str) -> Iterator[Any]:
    """The classes in a class, a union or a nested tuple of them, one at a time as Python looks at them."""
    classes = classes.realize()
    if isinstance(classes, TupleValue):
        for item in classes.known_items():
            yield from _classes(tracer, item, function)
        return
    try:
        content = classes.constant()
    except NotConstant:
        content = None
    if isinstance(content, types.UnionType) or typing.get_origin(content) is typing.Union:
        yield from typing.get_args(content)
    elif isinstance(content, type) or any(
        "__instancecheck__" in kind.__dict__ for kind in type(content).__mro__
    ):
        yield content
    else:
        word = "type" if function == "isinstance" else "class"
        plural = "types" if function == "isinstance" else "classes"
        tracer.throw(TypeError, f"{function}() arg 2 must be a {word}, a tuple of {plural}, or a union")


def _has_members(tracer: Tracer, value: Value, protocol: Any) -> bool:
    """Whether an object has what a runtime-checkable protocol asks for, in its class or by itself."""
    tracer.run_const(isinstance, None, protocol)  # complains about protocols that cannot be asked
    if protocol in value.python_type().__mro__:
        return True
    members = getattr(protocol, "__protocol_attrs__", None) or typing._get_protocol_attrs(protocol)  # type: ignore[attr-defined]
    return all(protocols.try_get_attr(tracer, value, name) is not None for name in sorted(members))


def _is_instance(tracer: Tracer, value: Value, cls: Any) -> bool:
    if cls is torch.autograd.Variable:  # whose instances all tensors are
        cls = torch.Tensor
    check = type(cls).__instancecheck__
    if getattr(cls, "_is_protocol", False):
        return _has_members(tracer, value, cls)
    if check in _BY_TYPE or not isinstance(cls, type):
        return _is_subclass(tracer, value.python_type(), cls)
    if isinstance(value, ConstantValue):
        return bool(tracer.run_const(isinstance, value.content, cls))
    if isinstance(check, types.FunctionType):
        asked = linked.library_value(tracer, check)
        verdict = protocols.call(tracer, asked, [linked.library_value(tracer, cls), value])
        return protocols.truth(tracer, verdict)
    tracer.stop("call_unknown", f"cannot tell whether {value.describe()} is an instance of {cls.__name__}")
