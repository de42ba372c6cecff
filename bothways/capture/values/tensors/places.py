"""Elements of a tensor at places that change from call to call: ``x[:, t]``, ``x[rows, t, None]``.

Indexing asks a symbol for its value, ``select`` does not. Whole dimensions and single places are the same said as
one ``select`` after the other, in eager's order; whatever else stands in an index is left to indexing, which selects
before it does anything else, too.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.tensors.tensors import TensorValue

MASKS = frozenset({torch.bool, torch.uint8})  # what an index of these has elements chosen by


def selected(tracer: Tracer, tensor: TensorValue, key: Value) -> Value | None:
    """The tensor at a symbolic place, or at a tuple with such places; None for any other index."""
    items = _items(key)
    if not any(map(_is_symbol, items)):
        return None
    if not all(map(_is_place_or_whole, items)):
        parts = _apart(tracer, tensor, items)
        if parts is None:
            return None
        at_places, others = parts
        return at_places.get_item(tracer, others[0] if len(others) == 1 else TupleValue(others))
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


def written(tracer: Tracer, tensor: TensorValue, key: Value, value: Value) -> bool:
    """Write to such places; False where that is for indexing to do."""
    items = _items(key)
    if not any(map(_is_symbol, items)):
        return False
    if all(map(_is_place_or_whole, items)) and _is_alike(value, tensor):
        at_places = selected(tracer, tensor, key)
        if at_places is not None:
            tracer.graph.op("call_method", "copy_", torch.Tensor.copy_, [at_places, value], {})
        return at_places is not None
    parts = _apart(tracer, tensor, items)
    if parts is None:
        return False
    place, others = parts
    operands = [place, TupleValue(others or [ConstantValue(Ellipsis)]), value]
    tracer.graph.op("call_function", operator.setitem, operator.setitem, operands, {})
    return True


def _is_alike(value: Value, tensor: TensorValue) -> bool:
    """Whether a value is a tensor that can be copied as it is."""
    if not isinstance(value, linked.TensorValue):
        return False
    return bool((value.fake.dtype, value.fake.device) == (tensor.fake.dtype, tensor.fake.device))


def _apart(tracer: Tracer, tensor: TensorValue, items: list[Value]) -> tuple[TensorValue, list[Value]] | None:
    """The tensor at the symbolic places of an index, and what else stands there; None where dimensions cannot be
    counted, or there are not enough of them."""
    counts = [None if _is_ellipsis(item) else _dimensions(item) for item in items]
    rest = [index for index, item in enumerate(items) if _is_ellipsis(item)]
    known = [count for count in counts if count is not None]
    left = len(tensor.fake.shape) - sum(known)
    if len(known) + len(rest) != len(items) or len(rest) > 1 or left < 0:
        return None
    place, dim = tensor, 0
    others: list[Value] = []
    for item, count in zip(items, counts, strict=True):
        if _is_symbol(item):
            arguments = [place, ConstantValue(dim), item]
            taken = tracer.graph.op("call_method", "select", torch.Tensor.select, arguments, {})
            assert isinstance(taken, linked.TensorValue)
            place = taken
        else:
            others.append(item)
            dim += left if count is None else count
    return place, others


def _dimensions(item: Value) -> int | None:
    """How many dimensions of the tensor an item of an index stands for; None where it is not known."""
    if isinstance(item, linked.TensorValue):
        return len(item.fake.shape) if item.fake.dtype in MASKS else 1
    if isinstance(item, SliceValue) or _is_symbol(item):
        return 1
    if isinstance(item, ConstantValue) and type(item.content) in (int, type(None)):
        return 0 if item.content is None else 1
    return None


def _items(key: Value) -> list[Value]:
    if type(key) is TupleValue and key.python_type() is tuple:
        return [item.realize() for item in key.known_items()]
    return [key]


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
