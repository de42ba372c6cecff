"""Numbers read from data, where the configuration wants them in the graph: ``item()``, ``int()``, ``tolist()``.

Each is a node of the graph and a symbol whose value is not known before the graph has run. It goes through
arithmetic, sizes and indices like any other number of the program; what has to know it stops the capture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import constant_value
from bothways.capture.values.core.handlers import HANDLERS, Handler
from bothways.capture.values.core.numbers import NumberValue, number_value
from bothways.capture.values.tensors.known_data import known_data
from bothways.capture.values.tensors.late_lists import late_list
from bothways.capture.values.tensors.late_numbers import ReadNumber, ReadTruth
from bothways.capture.values.tensors.tensor_attributes import STOPS
from bothways.capture.values.tensors.tensors import SPECIAL_METHODS, TensorValue
from bothways.capture.values.tensors.torch_functions import call_in_graph
from bothways.config import config
from bothways.node_facts import note_of_node

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# So many elements of a list are read one by one.
MOST_ELEMENTS = 64
MOST_READ = 1024  # together, behind the graph
MOST_LISTED = 1 << 14  # of a tensor that is known: each is a Value


def _kind(dtype: torch.dtype) -> type | None:
    """The kind of number that an element is in Python; None for those that are no symbols."""
    if dtype.is_floating_point:
        return float
    return None if dtype.is_complex or dtype is torch.bool else int


def _read(name: str, kind_of: Callable[[torch.dtype], type | None], call: str, target: Any) -> None:
    """Let a method of tensors be a node that gives a number."""

    def method(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        if (data := known_data(tracer, tensor)) is not None and not args and not kwargs:
            return constant_value(tracer.run_const(getattr(data, name)))
        kind, own = kind_of(tensor.fake.dtype), _kind(tensor.fake.dtype)
        waits = _may_wait(tracer, tensor) and not args and not kwargs
        if waits and tensor.fake.dtype is torch.bool and name != "__index__":
            truth = ReadTruth(tracer, tensor)
            return truth if name == "item" else truth.call_method(tracer, name, args, kwargs)
        if waits and kind and own and name != "__index__":  # an index is looked at
            read = ReadNumber(tracer, own, tensor)
            return read if kind is own else read.call_method(tracer, name, args, kwargs)
        if not _is_wanted(tracer) or kind is None or not tensor.is_single or args or kwargs:
            tracer.stop(*STOPS[name])
        return number_value(tracer.graph.number(kind, call, target, (tensor.node,)))

    SPECIAL_METHODS[name] = method


def _may_wait(tracer: Tracer, tensor: TensorValue) -> bool:
    """Whether a number is read behind the graph, if nothing has to know it before."""
    return tensor.is_single and not _is_wanted(tracer) and not tracer.symbols.only_looks


def _is_wanted(tracer: Tracer) -> bool:
    return config.numbers_from_data and not tracer.symbols.only_looks


_read("item", _kind, "call_method", "item")
_read("__int__", lambda dtype: None if dtype.is_complex else int, "call_function", int)
_read("__float__", lambda dtype: None if dtype.is_complex else float, "call_function", float)
_read("__index__", lambda dtype: int if _kind(dtype) is int else None, "call_method", "item")


def _tolist(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    data = None if args or kwargs else known_data(tracer, tensor)
    if data is not None and data.numel() <= MOST_LISTED:
        return constant_value(tracer.run_const(data.tolist))
    kind = _kind(tensor.fake.dtype)
    # Without a break allowed, whole numbers are wanted whatever the configuration says: lists of them are sizes.
    wanted = _is_wanted(tracer) or (kind is int and tracer.options.fullgraph and not tracer.symbols.only_looks)
    if args or kwargs:
        tracer.stop(*STOPS["tolist"])
    if not wanted or kind is None or math.prod(tensor.fake.shape) > MOST_ELEMENTS:
        return _late(tracer, tensor)
    for size in tensor.fake.shape:
        int(size)  # a list has a length
    return _listed(tracer, tensor, kind)


def _late(tracer: Tracer, tensor: TensorValue) -> Value:
    """The numbers as they are read behind the graph. Whole ones are mostly sizes or indices: where a break is allowed,
    plain Python makes a list of them."""
    shape, own = tensor.fake.shape, bool if tensor.fake.dtype is torch.bool else _kind(tensor.fake.dtype)
    fixed = tracer.options.fullgraph or (own is not int and all(type(size) is int for size in shape))
    if own is None or not fixed or _is_wanted(tracer) or tracer.symbols.only_looks or math.prod(shape) > MOST_READ:
        tracer.stop(*STOPS["tolist"])
    return late_list(tracer, tensor, own, [int(size) for size in shape])


def _listed(tracer: Tracer, tensor: TensorValue, kind: type) -> Value:
    if not tensor.fake.shape:
        return number_value(tracer.graph.number(kind, "call_method", "item", (tensor.node,)))
    rows = tensor.call_method(tracer, "unbind", [], {}) if tensor.fake.shape[0] else ListValue([])
    return ListValue([_listed(tracer, row, kind) for row in rows.parts() if isinstance(row, TensorValue)])


SPECIAL_METHODS["tolist"] = _tolist


def _made_of_data(function: Any) -> Handler:
    """``torch.tensor`` of lists with such numbers in them, or with tensors: a node that makes the tensor of them."""
    usual_handler = HANDLERS[function]

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        data = args[0].realize() if args else None
        if not isinstance(data, (ListValue, TupleValue, NumberValue)) or not holds_data(data):
            return usual_handler(tracer, args, kwargs)
        model = torch.tensor(_guessed(tracer, data))

        def sizes(data: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
            return torch.empty(model.shape, dtype=model.dtype if dtype is None else dtype, **kwargs)

        result = call_in_graph(tracer, function, args, kwargs, sizes)
        if isinstance(result, TensorValue):
            note_of_node(result.node, as_captured=True)
        return result

    return handler


def holds_data(value: Value) -> bool:
    """Whether lists hold a number that is not known yet, or a tensor."""
    value = value.realize()
    if isinstance(value, NumberValue):
        return value.is_unknown
    return isinstance(value, TensorValue) or any(holds_data(part) for part in value.parts())


def _guessed(tracer: Tracer, value: Value) -> Any:
    """The same lists with numbers of the right kinds in them."""
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        return [_guessed(tracer, part) for part in value.parts()]
    if isinstance(value, NumberValue) and value.is_unknown:
        return value.python_type()(0)
    if isinstance(value, TensorValue) and not value.fake.shape and value.fake.device.type == "cpu":
        return torch.zeros((), dtype=value.fake.dtype)
    if isinstance(value, TensorValue) or not value.is_constant:
        tracer.stop("tensor_value", f"torch.tensor reads {value.describe()}")
    return value.constant()


HANDLERS.update({function: _made_of_data(function) for function in (torch.tensor, torch.as_tensor)})
