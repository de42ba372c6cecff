"""Elements of a tensor at places that change from call to call: ``x[:, t]``.

Indexing asks a symbol for its value, ``select`` does not. Whole dimensions and single places are the same said as
one ``select`` after the other, in eager's order; whatever else stands in an index is left to indexing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bothways.capture.values.collections.containers import SliceValue, TupleValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.tensors.tensors import TensorValue


def selected(tracer: Tracer, tensor: TensorValue, key: Value) -> Value | None:
    """The tensor at a symbolic place, or at a tuple of whole dimensions and places; None for any other index."""
    items = [key]
    if type(key) is TupleValue and key.python_type() is tuple:
        items = [item.realize() for item in key.known_items()]
    if not any(map(_is_symbol, items)) or not all(map(_is_place_or_whole, items)):
        return None
    rest = [index for index, item in enumerate(items) if _is_ellipsis(item)]
    left = len(tensor.fake.shape) - (len(items) - len(rest))
    if left < 0 or len(rest) > 1:  # an error, which indexing words
        return None
    place: Value = tensor
    dim = 0
    for item in items:
        if _is_ellipsis(item):
            dim += left
        elif isinstance(item, SliceValue):
            dim += 1
        else:
            arguments = [place, ConstantValue(dim), item]
            place = tracer.graph.op("call_method", "select", torch.Tensor.select, arguments, {})
    return place


def written(tracer: Tracer, tensor: TensorValue, key: Value, value: TensorValue) -> bool:
    """Write a tensor to such places; False where that is for indexing to do."""
    if (value.fake.dtype, value.fake.device) != (tensor.fake.dtype, tensor.fake.device):
        return False
    place = selected(tracer, tensor, key)
    if place is None:
        return False
    tracer.graph.op("call_method", "copy_", torch.Tensor.copy_, [place, value], {})
    return True


def _is_symbol(item: Value) -> bool:
    return isinstance(item, NumberValue) and item.python_type() is int


def _is_ellipsis(item: Value) -> bool:
    return isinstance(item, ConstantValue) and item.content is Ellipsis


def _is_place_or_whole(item: Value) -> bool:
    if isinstance(item, SliceValue):
        bounds = [bound.realize() for bound in item.bounds]
        return all(isinstance(bound, ConstantValue) and bound.content is None for bound in bounds)
    is_constant = isinstance(item, ConstantValue) and type(item.content) is int
    return is_constant or _is_symbol(item) or _is_ellipsis(item)
