"""Arrays of NumPy that PyTorch takes for tensors: ``x[indices]``, ``torch.tensor(array)``, ``torch.from_numpy(array)``.

The program makes that tensor before its graph runs, so that it is an input like any other. What computes with arrays is
left to NumPy.
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
from bothways.capture.values.tensors.array_values import ArrayValue
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.values.tensors.torch_functions import on_default_device

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

OF_NUMBERS = frozenset("float64 float32 float16 bool uint8 int8 int16 int32 int64".split())
OF_FLOATS = (torch.Tensor, torch.FloatTensor, torch.DoubleTensor)
KEYWORDS = frozenset({"dtype", "device", "requires_grad"})
Make = Callable[..., torch.Tensor]


def array_of(value: Value) -> Any:
    """The array that a value is, whose numbers nothing has looked at; None for all others."""
    is_array = isinstance(value, (LazyValue, ArrayValue)) and type(value.obj) in numpy_numbers.ARRAYS
    return value.obj if is_array else None  # type: ignore[attr-defined]


def taken(tracer: Tracer, value: Value, dtypes: frozenset[str], make: Make) -> Value | None:
    """An array as the tensor that PyTorch makes of it; None where it is none of these dtypes, or may have changed."""
    tensor = _made(value, dtypes, make)
    if tensor is None or _may_have_changed(tracer, tensor.dtype):
        return None
    known = _known(tracer, value, make)
    return _input(tracer, value, tensor, make) if known is None else known


def handed_out(tracer: Tracer, value: Value) -> Value | None:
    """A tensor in the memory of an array. Inputs may share memory, and be written to at any time; but each tensor is
    an object of its own, so that a second one of the same array is left to Python."""
    tensor = _made(value, OF_NUMBERS, torch.from_numpy)
    if tensor is None or _known(tracer, value, torch.from_numpy) is not None:
        return None
    return _input(tracer, value, tensor, torch.from_numpy)


def _made(value: Value, dtypes: frozenset[str], make: Make) -> torch.Tensor | None:
    array = array_of(value)
    if array is None or value.source is None or str(array.dtype) not in dtypes:
        return None
    if not array.dtype.isnative or not array.flags.writeable:
        return None
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return None
    return make(array)


def _source(tracer: Tracer, value: Value, make: Make) -> TensorOf:
    assert value.source is not None
    return TensorOf(value.source, tracer.inject(make, f"torch.{make.__name__}"))


def _known(tracer: Tracer, value: Value, make: Make) -> TensorValue | None:
    source = _source(tracer, value, make)
    return next((one for one in tracer.graph.inputs if one.source == source), None)


def _input(tracer: Tracer, value: Value, tensor: torch.Tensor, make: Make) -> TensorValue:
    assert value.source is not None
    tracer.guard("type({s0}) is {c0} and {s0}.flags.writeable", value.source, type(array_of(value)))
    return TensorValue.external(tracer, tensor, _source(tracer, value, make))


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
    by_memory = taken(tracer, value, frozenset({"int64"}), torch.as_tensor)
    return by_memory or taken(tracer, value, frozenset({"int32"}), torch.tensor) or value


def _from_numpy(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
    tensor = handed_out(tracer, args[0]) if len(args) == 1 and not kwargs else None
    if tensor is None:
        tracer.stop("call_unknown", "torch.from_numpy is given something else than an array that can be written to")
    return tensor


def _of_array(function: Any) -> Handler:
    """``torch.tensor``; and ``torch.as_tensor``, which copies where it is asked for another dtype or device."""
    usual_handler = HANDLERS[function]

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        kwargs = on_default_device(tracer, function, kwargs)
        array = array_of(args[0]) if len(args) == 1 and KEYWORDS.issuperset(kwargs) else None
        if array is not None and "device" not in kwargs:
            kwargs = {**kwargs, "device": ConstantValue(constructors.default_place(tracer))}
        wanted = {name: value.realize() for name, value in kwargs.items()} if array is not None else {}
        is_plain = array is not None and all(isinstance(value, ConstantValue) for value in wanted.values())
        if is_plain and function is torch.as_tensor and _shares(array, wanted):
            return handed_out(tracer, args[0]) or usual_handler(tracer, args, kwargs)
        tensor = taken(tracer, args[0], OF_NUMBERS, torch.tensor) if is_plain else None
        if not isinstance(tensor, TensorValue):
            return usual_handler(tracer, args, kwargs)
        return tracer.inline(of_array, [tensor], wanted)

    return handler


def _shares(array: Any, wanted: dict[str, Value]) -> bool:
    """Whether ``torch.as_tensor`` gives the memory of the array itself."""
    constants = {name: value.constant() for name, value in wanted.items()}
    dtype, device = constants.get("dtype"), constants.get("device")
    is_here = device is None or torch.device(device).type == "cpu"
    return is_here and (dtype is None or str(dtype) == f"torch.{array.dtype}")


def _of_type(cls: type) -> Handler:
    usual_handler, dtype = HANDLERS[cls], constructors.DTYPES[cls]

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        is_alone = len(args) == 1 and not kwargs
        wanted = dtype or torch.get_default_dtype()
        array = array_of(args[0]) if is_alone else None
        place = constructors.default_place(tracer) if array is not None and dtype is None else constructors.CPU
        if array is not None and str(wanted) == f"torch.{array.dtype}" and place == "cpu":  # that shares its memory
            return handed_out(tracer, args[0]) or usual_handler(tracer, args, kwargs)
        tensor = taken(tracer, args[0], OF_NUMBERS, torch.tensor) if is_alone else None
        if not isinstance(tensor, TensorValue):
            return usual_handler(tracer, args, kwargs)
        return tracer.inline(of_array, [tensor], {"dtype": ConstantValue(wanted), "device": ConstantValue(place)})

    return handler


HANDLERS.update({function: _of_array(function) for function in (torch.tensor, torch.as_tensor)})
HANDLERS.update({cls: _of_type(cls) for cls in OF_FLOATS})
HANDLERS[torch.from_numpy] = _from_numpy
