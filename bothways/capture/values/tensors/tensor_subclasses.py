"""Tensors of classes of the user's: which of them can be captured, and how captured code makes them.

To a graph they are tensors like any others. A result gets its class after the graph has run; what its class does to
operations was inlined (``capture/overrides/overrides.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bothways import torch_compat
from bothways.capture.guards import policy
from bothways.capture.overrides.overrides import PLAIN_CLASSES
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.tensors import SPECIAL_METHODS, TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def check_class(tracer: Tracer, cls: type) -> None:
    """Stop for a class whose tensors are more than tensors with Python around them."""
    if cls in PLAIN_CLASSES:
        return
    if not issubclass(cls, torch.Tensor) or policy.module_of(cls).partition(".")[0] == "torch":
        tracer.stop("tensor_subclass", f"{cls.__module__}.{cls.__qualname__} is a kind of tensor of its own")
    if cls.__torch_dispatch__ is not torch_compat.disabled_torch_dispatch:
        tracer.stop("tensor_subclass", f"{cls.__qualname__} has a __torch_dispatch__")
    tracer.overrides.meet_subclass()


def as_subclass(tracer: Tracer, tensor: TensorValue, cls: type) -> TensorValue:
    """``tensor.as_subclass(cls)``: the same data and history under another class."""
    check_class(tracer, cls)
    if cls is torch.nn.Parameter or issubclass(cls, torch.nn.Parameter):
        tracer.stop("tensor_subclass", "a tensor becomes a Parameter")
    alias = torch.ops.aten.alias.default
    return _of_class(tracer.graph.op("call_function", alias, alias, [tensor], {}), cls)


def _of_class(value: Value, cls: type) -> TensorValue:
    assert isinstance(value, TensorValue)
    value.cls = cls
    return value


def _as_subclass(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    (cls,) = [*args, *kwargs.values()]
    return as_subclass(tracer, tensor, protocols.as_constant(tracer, cls))


SPECIAL_METHODS["as_subclass"] = _as_subclass


@handles(torch_compat.make_subclass)
def _make_subclass(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    arguments = dict(zip(("cls", "data", "require_grad"), args, strict=False)) | kwargs
    cls, data = protocols.as_constant(tracer, arguments["cls"]), arguments["data"].realize()
    check_class(tracer, cls)
    wants_grad = protocols.truth(tracer, arguments.get("require_grad", ConstantValue(False)))
    if len(arguments) > 3 or wants_grad or not isinstance(data, TensorValue) or issubclass(cls, torch.nn.Parameter):
        tracer.stop("tensor_subclass", f"a {cls.__name__} is made that is a leaf of its own")
    return _of_class(tracer.graph.op("call_method", "detach", torch.Tensor.detach, [data], {}), cls)


def new_tensor(tracer: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """``torch.Tensor.__new__(cls, tensor)``, the old-fashioned constructor."""
    data = args[0].realize() if len(args) == 1 and not kwargs else None
    if cls in PLAIN_CLASSES or not isinstance(data, TensorValue):
        tracer.stop("tensor_subclass", f"a {cls.__name__} is made inside the function")
    return as_subclass(tracer, data, cls)
