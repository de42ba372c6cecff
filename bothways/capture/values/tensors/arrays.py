"""Arrays of NumPy that PyTorch takes for tensors: ``x[indices]``, ``torch.tensor(array)``.

The program makes that tensor before its graph runs, so that it is an input like any other. What gives a tensor in the
memory of an array, or computes with arrays, is left to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.guards.sources import TensorOf
from bothways.capture.shapes.changes import written_roots
from bothways.capture.standins.constructors import of_array
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import numpy_numbers
from bothways.capture.values.core.base import Args, Kwargs, LazyValue, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS, Handler
from bothways.capture.values.tensors import constructors
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

OF_NUMBERS = frozenset("float64 float32 float16 bool uint8 int8 int16 int32 int64".split())
OF_FLOATS = (torch.Tensor, torch.FloatTensor, torch.DoubleTensor)
KEYWORDS = frozenset({"dtype", "device", "requires_grad"})


def array_of(value: Value) -> Any:
    """The array that a value is, of which nothing was looked at; None for all others."""
    is_array = isinstance(value, LazyValue) and type(value.obj) in numpy_numbers.ARRAYS
    return value.obj if is_array else None  # type: ignore[attr-defined]


def taken(tracer: Tracer, value: Value, dtypes: frozenset[str], make: Callable[..., torch.Tensor]) -> Value | None:
    """An array as the tensor that PyTorch makes of it; None where it is none of these dtypes, or may have changed."""
    array = array_of(value)
    if array is None or value.source is None or str(array.dtype) not in dtypes:
        return None
    if not array.dtype.isnative or not array.flags.writeable or min(array.strides, default=0) < 0:
        return None
    tensor = make(array)
    if _may_have_changed(tracer, tensor.dtype):
        return None
    source = TensorOf(value.source, tracer.inject(make, f"torch.{make.__name__}"))
    known = next((one for one in tracer.graph.inputs if one.source == source), None)
    if known is not None:
        return known
    tracer.guard("type({s0}) is {c0} and {s0}.flags.writeable", value.source, type(array))
    return TensorValue.external(tracer, tensor, source)


def _may_have_changed(tracer: Tracer, dtype: torch.dtype) -> bool:
    """Whether an input of this dtype was written to, which may lie in the memory of an array."""
    dtypes = {one.placeholder: one.fake.dtype for one in tracer.graph.inputs}
    written = written_roots(tracer.graph.graph.nodes)
    return any(dtypes.get(node) == dtype for roots in written for node in roots)


def as_index(tracer: Tracer, tensor: Value, key: Value) -> Value:
    """An index with tensors in the place of arrays. PyTorch takes an array of several dimensions apart."""
    if not isinstance(tensor, TensorValue):
        return key
    array = array_of(key)
    if array is not None:
        return _index(tracer, key) if array.ndim == 1 else key
    if isinstance(key, TupleValue) and any(array_of(item) is not None for item in key.items):
        return TupleValue([_index(tracer, item) for item in key.items])
    return key


def _index(tracer: Tracer, value: Value) -> Value:
    """PyTorch indexes by the memory of the array itself where it holds numbers of 64 bits, and else by a copy."""
    by_memory = taken(tracer, value, frozenset({"int64"}), torch.from_numpy)
    return by_memory or taken(tracer, value, frozenset({"int32"}), torch.tensor) or value


def _of_array(function: Any) -> Handler:
    """``torch.tensor``; and ``torch.as_tensor``, where another dtype asks for a copy."""
    usual_handler = HANDLERS[function]

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        array = array_of(args[0]) if len(args) == 1 and KEYWORDS.issuperset(kwargs) else None
        wanted = {name: value.realize() for name, value in kwargs.items()} if array is not None else {}
        is_plain = array is not None and all(isinstance(value, ConstantValue) for value in wanted.values())
        tensor = taken(tracer, args[0], OF_NUMBERS, torch.tensor) if is_plain else None
        if not isinstance(tensor, TensorValue):
            return usual_handler(tracer, args, kwargs)
        dtype = wanted.get("dtype", ConstantValue(None))
        shares = function is torch.as_tensor and dtype.constant() in (None, tensor.fake.dtype)
        if shares:
            return usual_handler(tracer, args, kwargs)
        return tracer.inline(of_array, [tensor], wanted)

    return handler


def _of_type(cls: type) -> Handler:
    usual_handler, dtype = HANDLERS[cls], constructors.DTYPES[cls]

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        is_alone = len(args) == 1 and not kwargs and cls().device.type == "cpu"
        wanted = dtype or torch.get_default_dtype()
        tensor = taken(tracer, args[0], OF_NUMBERS, torch.tensor) if is_alone else None
        if not isinstance(tensor, TensorValue) or tensor.fake.dtype == wanted:  # that shares its memory
            return usual_handler(tracer, args, kwargs)
        return tracer.inline(of_array, [tensor], {"dtype": ConstantValue(wanted)})

    return handler


HANDLERS.update({function: _of_array(function) for function in (torch.tensor, torch.as_tensor)})
HANDLERS.update({cls: _of_type(cls) for cls in OF_FLOATS})
