"""``torch.tensor`` of numbers that change from call to call: ``torch.tensor(step)``, ``torch.tensor([[x, v]])``.

The graph makes the tensor of the numbers it is given, so that one program is for all of them. Lists that are long, and
what ``torch.tensor`` would refuse or convert in a way of its own, are constants as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.standins import constructors as standins
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS, Handler
from bothways.capture.values.core.methods import none
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.tensors.data_numbers import holds_data  # whose handlers are asked about all else

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

MOST = 32  # elements, each of which is a node
# What any of the dtypes holds that a number of the kind is made one of.
LARGEST: dict[type, Any] = {float: 1e38, int: 2**62}
FLOATS = (None, torch.float32, torch.float64, torch.bfloat16)


def _of_changing_data(function: Any) -> Handler:
    usual_handler = HANDLERS[function]

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        data = args[0].realize() if args else None
        if data is None or len(args) > 1 or tracer.overrides.heeds_modes or not _is_made(tracer, data, kwargs):
            return usual_handler(tracer, args, kwargs)
        has_floats = any(number.python_type() is float for number in _numbers(data))
        options = {name: kwargs.get(name, none()) for name in ("dtype", "device")}
        return tracer.inline(standins.of_changing_numbers, [data, ConstantValue(has_floats)], options)

    return handler


def _is_made(tracer: Tracer, data: Value, kwargs: Kwargs) -> bool:
    """Whether the graph can make it: some of the numbers change, and all are taken as they are."""
    numbers = list(_numbers(data))
    changes = any(isinstance(number, NumberValue) for number in numbers)
    if not changes or len(numbers) > MOST or _shape(data) is None or not {"dtype", "device"} >= set(kwargs):
        return False
    if holds_data(data):
        return False
    dtype = kwargs["dtype"].realize().constant() if "dtype" in kwargs else None
    kinds = {number.python_type() for number in numbers}
    if not (dtype in FLOATS or (dtype is torch.int64 and kinds == {int})) or not kinds <= {int, float}:
        return False
    return all(_is_held(tracer, number) for number in numbers)


def _is_held(tracer: Tracer, number: Value) -> bool:
    """Whether a number is one that its dtype holds; of one that changes, a guard says so."""
    most = LARGEST[number.python_type()]
    if isinstance(number, ConstantValue):
        return math.isfinite(number.content) and abs(number.content) < most  # type: ignore[arg-type]
    return all(
        protocols.truth(tracer, protocols.compare(tracer, symbol, number, ConstantValue(bound)))
        for symbol, bound in (("<", most), (">", -most))
    )


def _numbers(data: Value) -> Iterator[Value]:
    """What is in nested lists, in order."""
    data = data.realize()
    if isinstance(data, (ListValue, TupleValue)):
        for item in data.known_items():
            yield from _numbers(item)
    else:
        yield data


def _shape(data: Value) -> tuple[int, ...] | None:
    """The shape of nested lists; None where they have none, or are no lists of numbers."""
    data = data.realize()
    if isinstance(data, (ListValue, TupleValue)):
        items = data.known_items()
        shapes = {_shape(item) for item in items}
        inner = shapes.pop() if len(shapes) == 1 else None
        return None if inner is None else (len(items), *inner)
    is_constant = isinstance(data, ConstantValue) and type(data.content) in (int, float)
    return () if is_constant or (isinstance(data, NumberValue) and data.python_type() in (int, float)) else None


HANDLERS.update({function: _of_changing_data(function) for function in (torch.tensor, torch.as_tensor)})
