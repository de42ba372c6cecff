"""The arguments of an operation, from Values to what a node of the graph holds and what the fakes take."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.core.base import NotConstant, Value
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.core.numpy_numbers import for_tensors
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.writing.object_inputs import ObjectInput
from bothways.fake import is_whole_for_torch

if TYPE_CHECKING:
    from bothways.capture.recording.graph import GraphBuilder

# What a graph's code can spell out.
GRAPH_CONSTANTS = (
    int, float, complex, bool, str, type(None), type(Ellipsis), range, slice, tuple, list, dict,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip
# Python types that stand for dtypes where an operation takes one.
TYPES_AS_DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
# The tensors that an operation is given, by their fakes, with how often each was changed before.
Arguments = dict[int, tuple[TensorValue, int | None]]


def argument(builder: GraphBuilder, value: Value | ObjectInput, tensors: Arguments) -> tuple[Any, Any]:
    """An argument twice: as the graph holds it and as the fakes take it. Tensors are put into ``tensors`` by fakes."""
    if isinstance(value, ObjectInput):
        return value.node, None
    value = value.realize()
    if isinstance(value, NumberValue):
        return builder.sizes.node(value.content), value.content
    if isinstance(value, TensorValue):
        builder.levels.use(value.node)
        tensors[id(value.fake)] = value, torch_compat.version_of(value.fake.meta)
        return value.node, value.fake
    if isinstance(value, (ListValue, TupleValue)):
        pairs = [argument(builder, item, tensors) for item in value.items_for_graph(builder.tracer)]
        kind: type = list if isinstance(value, ListValue) else tuple
        return kind(node for node, _ in pairs), kind(fake for _, fake in pairs)
    if isinstance(value, SliceValue):
        pairs = [argument(builder, part, tensors) for part in value.bounds]
        return slice(*(node for node, _ in pairs)), slice(*(fake for _, fake in pairs))
    if isinstance(value, DictValue):
        named = {key: argument(builder, item, tensors) for key, item in value.constant_items(builder.tracer)}
        return {k: node for k, (node, _) in named.items()}, {k: fake for k, (_, fake) in named.items()}
    try:
        constant = for_tensors(value.constant())
    except NotConstant:
        builder.tracer.stop("call_unknown", f"a tensor operation cannot take {value.describe()}")
    if isinstance(constant, type):
        constant = TYPES_AS_DTYPES.get(constant, constant)
    if isinstance(constant, enum.Enum) and isinstance(constant, (int, str)):
        constant = constant.value  # a graph's code has no name for the member
    if isinstance(constant, int) and not is_whole_for_torch(constant):
        builder.tracer.stop("op_failed", f"a tensor operation is given {value.describe()}, which no dtype holds")
    if not isinstance(constant, GRAPH_CONSTANTS):
        builder.tracer.stop("call_unknown", f"a graph cannot hold {value.describe()}")
    return constant, constant
