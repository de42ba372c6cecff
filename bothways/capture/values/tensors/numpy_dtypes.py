"""Tensors made of NumPy's numbers: ``torch.tensor(np.float64(2))`` has NumPy's dtype, not the default one.

A graph holds the numbers of Python that they are, so the dtype that PyTorch would find is written beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.deques import DequeValue
from bothways.capture.values.core import numpy_numbers, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS, Handler
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.values.tensors.torch_functions import call_in_graph

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Function -> what it calls the numbers.
FINDS_DTYPES: dict[Any, str] = {torch.tensor: "data", torch.as_tensor: "data", torch.asarray: "obj"}


def _with_dtype(function: Any, name: str) -> Handler:
    usual_handler = HANDLERS.get(function)

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        args, kwargs = [_as_list(tracer, arg) for arg in args[:1]] + args[1:], dict(kwargs)
        if name in kwargs:
            kwargs[name] = _as_list(tracer, kwargs[name])
        data = args[0] if args else kwargs.get(name)
        if data is not None and _holds_numpys(data):
            dtype = kwargs.get("dtype")
            wanted = None if dtype is None else protocols.as_constant(tracer, dtype)
            model = tracer.run_const(torch.tensor, _alike(data), dtype=wanted)  # not all dtypes hold NumPy's numbers
            kwargs = {**kwargs, "dtype": ConstantValue(model.dtype)}
        if usual_handler is not None:
            return usual_handler(tracer, args, kwargs)
        return call_in_graph(tracer, function, args, kwargs)

    return handler


def _as_list(tracer: Tracer, data: Value) -> Value:
    """What PyTorch reads like a list: a deque."""
    known = data.realize()
    return ListValue([*known.items_for_graph(tracer)]) if isinstance(known, DequeValue) else data


def _holds_numpys(value: Value) -> bool:
    """Whether a number of NumPy's is a value, or somewhere in lists."""
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        return any(map(_holds_numpys, value.parts()))
    return value.python_type() in numpy_numbers.NUMBERS


def _alike(value: Value) -> Any:
    """The same lists with numbers of the same types in them."""
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        return [_alike(part) for part in value.parts()]
    if isinstance(value, NumberValue):
        return value.python_type()(1)
    return torch.zeros((), dtype=value.fake.dtype) if isinstance(value, TensorValue) else value.constant()


HANDLERS.update({function: _with_dtype(function, name) for function, name in FINDS_DTYPES.items()})
