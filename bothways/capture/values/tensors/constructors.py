"""Old-fashioned constructors: ``torch.Tensor``, ``torch.FloatTensor`` and its like, ``Tensor.new``.

Whole numbers are sizes of a tensor without content; a list or tuple of numbers is its content. What shares the memory
of a tensor or an array, or reads what is in tensors, stays with Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bothways import torch_compat
from bothways.capture.standins import constructors as standins
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS, Handler
from bothways.capture.values.tensors.tensors import SPECIAL_METHODS, TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# None: the caller's default.
DTYPES: dict[type, torch.dtype | None] = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.ByteTensor: torch.uint8,
    torch.CharTensor: torch.int8,
    torch.ShortTensor: torch.int16,
    torch.IntTensor: torch.int32,
    torch.LongTensor: torch.int64,
    torch.BoolTensor: torch.bool,
}
NUMBERS = (int, float, bool)
CPU = "cpu"


def _split(tracer: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> tuple[Value | None, Value | None]:
    """The sizes that a constructor is given, or else the numbers."""
    values = [arg.realize() for arg in args]
    if not kwargs and all(value.python_type() is int for value in values):
        return TupleValue(values or [ConstantValue(0)]), None
    if not kwargs and len(values) == 1 and values[0].python_type() is torch.Size:
        return values[0], None
    if not kwargs and len(values) == 1 and _is_of_numbers(tracer, values[0]):
        return None, values[0]
    tracer.stop("tensor_subclass", f"{name} is given something else than sizes or numbers")


def _is_of_numbers(tracer: Tracer, value: Value) -> bool:
    """Whether a value is a list or tuple of numbers, or of such."""
    value = value.realize()
    if value.python_type() not in (list, tuple):
        return False
    items = [item.realize() for item in protocols.unpack(tracer, value)]
    return all(item.python_type() in NUMBERS or _is_of_numbers(tracer, item) for item in items)


def default_place(tracer: Tracer) -> str:
    """The kind of device on which ``torch.Tensor`` makes tensors."""
    place = torch_compat.device_of_tensor_types()
    source = tracer.inject(torch_compat.device_of_tensor_types, "torch.device_of_tensor_types")
    tracer.guard("{s0}() == {c0}", source, place)
    return place


def _of_type(cls: type, dtype: torch.dtype | None) -> Handler:
    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        sizes, numbers = _split(tracer, f"torch.{cls.__name__}", args, kwargs)
        place = ConstantValue(CPU if dtype is not None else default_place(tracer))
        if sizes is not None:
            return tracer.inline(standins.of_sizes, [sizes, ConstantValue(dtype), place], {})
        assert numbers is not None
        return tracer.inline(standins.of_numbers, [numbers, ConstantValue(dtype), place], {})

    return handler


def _new(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """``tensor.new``: a tensor of the same kind."""
    sizes, numbers = _split(tracer, "Tensor.new", args, kwargs)
    if sizes is not None:
        return protocols.call_attr(tracer, tensor, "new_empty", sizes)
    assert numbers is not None
    return protocols.call_attr(tracer, tensor, "new_tensor", numbers)


HANDLERS.update({cls: _of_type(cls, dtype) for cls, dtype in DTYPES.items()})
SPECIAL_METHODS.update(new=_new)
