"""What processes tell each other: collectives of ``torch.distributed`` that run at once are nodes of the graph.

Each is one node where it stands, and runs as often as in eager: a capture runs none. Its process group is a number
behind a guard. What is asynchronous, what autograd could see, and what PyTorch would refuse runs as plain Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from bothways import torch_compat
from bothways.capture.guards.sources import Source
from bothways.capture.overrides.overrides import PLAIN_CLASSES
from bothways.capture.shapes.changes import path_of
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS, handles
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.node_facts import note_of_node
from bothways.runtime import collectives
from bothways.runtime.collectives import DEFAULT, number_of

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

DTYPES = frozenset({
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
})  # fmt: skip
# Reductions, and for which dtypes all backends know them.
REDUCTIONS: dict[str, Callable[[torch.dtype], bool]] = {
    **dict.fromkeys(("SUM", "PRODUCT", "MIN", "MAX"), lambda dtype: True),
    "AVG": lambda dtype: dtype.is_floating_point,
}
Shape = tuple[Any, ...]


class GroupValue(Value):
    """A process group: one from outside, or the default one."""

    def __init__(self, group: Any, source: Source | None = None) -> None:
        self.group, self.source = group, source

    @classmethod
    def external(cls, tracer: Tracer, group: Any, source: Source) -> GroupValue:
        """By its number, which is no group's that is not in use."""
        tracer.guard("{s0}({s1}) == {c0}", tracer.inject(number_of, "number_of"), source, number_of(group))
        value = cls(group, source)
        tracer.remember(group, value)
        return value

    @property
    def number(self) -> int:
        return DEFAULT if self.source is None else number_of(self.group)

    @property
    def in_use(self) -> bool:
        return number_of(self.group) > 0

    def python_type(self) -> type:
        return type(self.group)

    def identity(self) -> object:
        return self.group

    def hash_key(self, tracer: Tracer) -> Hashable:
        return id(self.group)

    def rebuild(self, emitter: Emitter) -> str:
        if self.source is not None:
            return str(emitter.read(self.source))
        return f"{emitter.inject(torch_compat.group_in_use, 'default_group')}()"


class ReductionValue(Value):
    """One of the kinds of reduction: ``ReduceOp.SUM``."""

    def __init__(self, reduction: Any, source: Source) -> None:
        self.reduction, self.source = reduction, source

    @classmethod
    def external(cls, tracer: Tracer, reduction: Any, source: Source) -> ReductionValue:
        tracer.guard("type({s0}) is {c0}", source, type(reduction))
        tracer.guard("{s0} == {c0}", source, reduction)
        return cls(reduction, source)

    def python_type(self) -> type:
        return type(self.reduction)

    def identity(self) -> object:
        return self.reduction

    def constant(self) -> Any:
        return self.reduction

    def hash_key(self, tracer: Tracer) -> Hashable:
        return self.reduction.name

    def rebuild(self, emitter: Emitter) -> str:
        assert self.source is not None
        return str(emitter.read(self.source))


def _default_group(tracer: Tracer) -> GroupValue:
    tracer.guard("{s0}() == {c0}", tracer.inject(number_of, "number_of"), number_of())
    return GroupValue(torch_compat.group_in_use())


def _group(tracer: Tracer, value: Value | None, what: str) -> GroupValue:
    """The group of a call, in which this process is; a break where it is not to be had."""
    group = _default_group(tracer) if value is None or is_none(value) else value.realize()
    if not isinstance(group, GroupValue) or not group.in_use or dist.get_rank(group.group) < 0:
        tracer.stop("call_unknown", f"{what} has no process group in which it would run at once")
    return group


class CollectiveCall:
    """One call of a collective, checked before it is recorded."""

    def __init__(self, tracer: Tracer, what: str, group: Value | None, async_op: Value | None) -> None:
        self._tracer, self.what = tracer, f"torch.distributed.{what}"
        if async_op is not None and protocols.as_constant(tracer, async_op) is not False:
            self.stop("is asynchronous")
        tracer.overrides.refuse_modes(tracer, self.what)
        tracer.graph.levels.refuse_all(self.what)
        self.group = _group(tracer, group, self.what)

    def stop(self, why: str) -> NoReturn:
        self._tracer.stop("call_unknown", f"{self.what} {why}")

    def reads(self, value: Value) -> TensorValue:
        """A tensor that autograd would not look at, as it lies without gaps."""
        tensor = value.realize()
        if not isinstance(tensor, TensorValue) or tensor.cls not in PLAIN_CLASSES:
            self.stop("takes plain tensors")
        if tensor.fake.dtype not in DTYPES or not torch_compat.backend_of(self.group.group, tensor.fake.device):
            self.stop(f"is given {tensor.describe()} on {tensor.fake.device}")
        if not tensor.fake.is_contiguous:
            self.stop("is given a tensor with gaps")
        if tensor.fake.requires_grad:
            self.stop("is given a tensor with a gradient")
        return tensor

    def writes(self, value: Value) -> TensorValue:
        """The same of what is changed, which is no memory of an input with a gradient: nothing would count that."""
        tensor = self.reads(value)
        if any(_has_history(node) for node in path_of(tensor.node)):
            self.stop("changes an input with a gradient")
        return tensor

    def reduction(self, op: Value | None, tensor: TensorValue) -> ConstantValue:
        if op is None:
            return ConstantValue("SUM")
        kind = op.realize()
        name = kind.reduction.name if isinstance(kind, ReductionValue) else ""
        if not (name in REDUCTIONS and REDUCTIONS[name](tensor.fake.dtype)):
            self.stop(f"reduces {tensor.describe()} in a way of its own")
        return ConstantValue(name)

    def check_sizes(self, whole: TensorValue, part: TensorValue) -> None:
        """Stop where one tensor does not hold another one of each process, as all backends want it."""
        self.check_alike(whole, (self.size * part.fake.shape[0], *part.fake.shape[1:]) if part.fake.shape else (), part)

    def check_alike(self, tensor: TensorValue, shape: Shape, other: TensorValue) -> None:
        """Stop where a tensor has not this shape, or other kinds of elements than the other one."""
        if (tensor.fake.dtype, tensor.fake.device) != (other.fake.dtype, other.fake.device):
            self.stop("is given tensors of several kinds")
        with self._tracer.symbols.assuming():
            if not shape or len(tensor.fake.shape) != len(shape) or any(map(operator.ne, tensor.fake.shape, shape)):
                self.stop("is given sizes that do not fit")

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group.group)

    def whole(self, value: Value | None) -> int | None:
        if value is None or is_none(value):
            return None
        number = protocols.as_constant(self._tracer, value)
        if type(number) is not int:
            self.stop("is given something else than a whole number")
        return number

    def record(self, node: Callable[..., Any], *args: Value) -> Value:
        collectives.operations()
        tracer = self._tracer
        before = tracer.graph.last_node_or_none
        tracer.graph.op("call_function", node, _first, [*args, ConstantValue(self.group.number)], {})
        tensors = [arg for arg in args if isinstance(arg, TensorValue)]
        if not all(self._is_traced_on(tensor.fake.device, node) for tensor in tensors):
            for recorded in tracer.graph.nodes_after(before):
                note_of_node(recorded, as_captured=True)
        return ConstantValue(None)

    def _is_traced_on(self, device: torch.device, node: Callable[..., Any]) -> bool:
        """Whether it may be part of a compiled graph. One on a GPU may be recorded, and whether it is has to be the
        same in all processes, which do not tell each other: it is where there is one process. Even there what is sent
        is kept by NCCL, which ends no group before all graphs that send are gone."""
        is_alone = self.size == 1 and node is not collectives.all_to_all_
        return device.type == "cpu" or (is_alone and torch_compat.backend_of(self.group.group, device) == "nccl")


def _has_history(node: torch.fx.Node) -> bool:
    example = node.meta.get("example_value")
    return isinstance(example, torch.Tensor) and example.requires_grad


def _first(*args: Any) -> Any:
    """What the nodes give: what they were given to change."""
    return args[0] if args and not isinstance(args[0], int) else None


@handles(*torch_compat.collective("all_reduce"))
def _all_reduce(
    tracer: Tracer, /, tensor: Value, op: Value | None = None, group: Value | None = None,
    async_op: Value | None = None,
) -> Value:  # fmt: skip
    call = CollectiveCall(tracer, "all_reduce", group, async_op)
    changed = call.writes(tensor)
    return call.record(collectives.all_reduce_, changed, call.reduction(op, changed))


@handles(*torch_compat.collective("broadcast"))
def _broadcast(
    tracer: Tracer, /, tensor: Value, src: Value | None = None, group: Value | None = None,
    async_op: Value | None = None, group_src: Value | None = None,
) -> Value:  # fmt: skip
    call = CollectiveCall(tracer, "broadcast", group, async_op)
    source, rank = call.whole(src), call.whole(group_src)
    if (source is None) == (rank is None):
        call.stop("has no source")
    ranks = dist.get_process_group_ranks(call.group.group)
    if source is None and rank is not None and 0 <= rank < len(ranks):
        source = ranks[rank]
    if source not in ranks:
        call.stop("has a source that is not in the group")
    return call.record(collectives.broadcast_, call.writes(tensor), ConstantValue(source))


def _gathers(name: str) -> Callable[..., Value]:
    def handler(
        tracer: Tracer, /, output_tensor: Value, input_tensor: Value, group: Value | None = None,
        async_op: Value | None = None,
    ) -> Value:  # fmt: skip
        call = CollectiveCall(tracer, name, group, async_op)
        into, tensor = call.writes(output_tensor), call.reads(input_tensor)
        call.check_sizes(into, tensor)
        return call.record(collectives.all_gather_, into, tensor, ConstantValue(name))

    return handler


def _scatters(name: str) -> Callable[..., Value]:
    def handler(
        tracer: Tracer, /, output: Value, input: Value, op: Value | None = None, group: Value | None = None,
        async_op: Value | None = None,
    ) -> Value:  # fmt: skip
        call = CollectiveCall(tracer, name, group, async_op)
        into, tensor = call.writes(output), call.reads(input)
        reduction = call.reduction(op, tensor)
        call.check_sizes(tensor, into)
        return call.record(collectives.reduce_scatter_, into, tensor, ConstantValue(name), reduction)

    return handler


for _name in ("all_gather_into_tensor", "all_gather_single"):
    handles(*torch_compat.collective(_name))(_gathers(_name))
for _name in ("reduce_scatter_tensor", "reduce_scatter_single"):
    handles(*torch_compat.collective(_name))(_scatters(_name))


@handles(*torch_compat.collective("all_gather"))
def _all_gather(
    tracer: Tracer, /, tensor_list: Value, tensor: Value, group: Value | None = None, async_op: Value | None = None
) -> Value:
    call = CollectiveCall(tracer, "all_gather", group, async_op)
    parts = tensor_list.realize()
    if not isinstance(parts, (ListValue, TupleValue)) or len(parts.items) != call.size:
        call.stop("gathers into something else than a list of one for each process")
    own, into = call.reads(tensor), [call.writes(part) for part in parts.items]
    for part in into:
        call.check_alike(part, tuple(own.fake.shape), own)
    return call.record(collectives.all_gather_list_, ListValue([*into]), own)


@handles(*torch_compat.collective("all_to_all_single"))
def _all_to_all_single(
    tracer: Tracer, /, output: Value, input: Value, output_split_sizes: Value | None = None,
    input_split_sizes: Value | None = None, group: Value | None = None, async_op: Value | None = None,
) -> Value:  # fmt: skip
    call = CollectiveCall(tracer, "all_to_all_single", group, async_op)
    into, tensor = call.writes(output), call.reads(input)
    shape = tuple(tensor.fake.shape)
    call.check_alike(into, (*into.fake.shape[:1], *shape[1:]) if shape else (), tensor)
    sizes = [
        _split_sizes(tracer, call, value, side)
        for value, side in ((output_split_sizes, into), (input_split_sizes, tensor))
    ]
    return call.record(collectives.all_to_all_, into, tensor, *sizes)


def _split_sizes(tracer: Tracer, call: CollectiveCall, value: Value | None, tensor: TensorValue) -> Value:
    """How much of one side belongs to each process."""
    length = tensor.fake.shape[0]
    if value is None or is_none(value):
        with tracer.symbols.assuming():
            if length % call.size:
                call.stop("is given sizes that do not fit")
        return ConstantValue(None)
    sizes = [protocols.as_constant(tracer, size) for size in protocols.unpack(tracer, value)]
    with tracer.symbols.assuming():
        if len(sizes) != call.size or sum(sizes) != length or any(size < 0 for size in sizes):
            call.stop("is given sizes that do not fit")
    return ListValue([ConstantValue(size) for size in sizes])


@handles(*torch_compat.collective("barrier"))
def _barrier(
    tracer: Tracer, /, group: Value | None = None, async_op: Value | None = None, device_ids: Value | None = None
) -> Value:
    call = CollectiveCall(tracer, "barrier", group, async_op)
    if not is_none(device_ids):
        call.stop("is told its devices")
    return call.record(collectives.wait_for_all)


def _asks(function: Callable[..., Any]) -> Callable[..., Value]:
    def handler(tracer: Tracer, /, group: Value | None = None) -> Value:
        answered = function(_group(tracer, group, f"torch.distributed.{function.__name__}").group)
        return ConstantValue(answered)

    return handler


for _function in torch_compat.collective("get_world_size", "get_rank"):
    handles(_function)(_asks(_function))
HANDLERS.update({getter: lambda tracer, args, kwargs: _default_group(tracer) for getter in torch_compat.WORLD_GETTERS})
