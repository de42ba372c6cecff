"""Calls that become one node with a graph of their own: ``torch.utils.checkpoint`` and ``torch.cond``.

The callee is captured into the same graph as any other; what it recorded is then copied into a module, and one node
calls that. The originals stay behind without users and are dropped at the end; should something else turn out to use
them, they are computed once more, and where that would be wrong the capture stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

from bothways.capture.shapes.changes import changes_something, statistics_of
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, LazyValue, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.runtime.nodes import Checkpointed, Choice

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

CHECKPOINT_OPTIONS = frozenset("preserve_rng_state determinism_check debug early_stop".split())


@dataclass
class RecordedCall:
    """What one call recorded, and what it gave."""

    nodes: list[torch.fx.Node]
    result: Value

    @property
    def inputs(self) -> list[torch.fx.Node]:
        own = set(self.nodes)
        read = (node for user in self.nodes for node in user.all_input_nodes)
        return list(dict.fromkeys(node for node in read if node not in own))

    @property
    def changed(self) -> set[torch.fx.Node]:
        """The inputs that the call changes in place; normalization does so to its statistics."""
        changed: set[torch.fx.Node] = set()
        for node in filter(changes_something, self.nodes):
            if statistics := statistics_of(node):
                changed.update(statistics)
                continue
            target: Any = node.args[0]
            while target in self.nodes and changes_something(target):
                target = target.args[0]
            changed.add(target)
        return changed.intersection(self.inputs)

    def tensors(self, tracer: Tracer) -> list[TensorValue]:
        """The tensors in the result that the call computed, each once."""
        own = set(self.nodes)
        computed = [value for value in tensors_in(tracer, self.result) if value.node in own]
        return list({id(value): value for value in computed}.values())

    def module(self, inputs: list[torch.fx.Node], outputs: list[TensorValue]) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in inputs}
        for node in self.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[value.node] for value in outputs))
        return torch.fx.GraphModule(torch.nn.Module(), graph)


def record(
    tracer: Tracer, function: Value, args: Args, kwargs: Kwargs, is_mapped: bool = False
) -> RecordedCall:
    """Capture a call, and say which nodes it recorded. What is mapped runs once, as it does here, inside of transforms
    as well, and whatever else it does to objects is done."""
    if not tracer.overrides.idle:
        tracer.stop("torch_mode", "a function that runs as a graph of its own runs where operations are overridden")
    builder = tracer.graph
    if not is_mapped:
        builder.levels.refuse_all("a function that runs as a graph of its own is called")
    before = builder.last_node_or_none
    held = {id(value): value.node for value in builder.inputs}
    changes, events, numbers = tracer.effects.changes, len(tracer.effects.registrations), len(tracer.symbols.nodes)
    result = protocols.call(tracer, function, args, kwargs)
    nodes = [node for node in builder.nodes_after(before) if node not in builder.left_behind]
    if (tracer.effects.changes > changes and not is_mapped) or len(tracer.effects.registrations) > events:
        tracer.stop("mutation_unknown", "a function that runs as a graph of its own has side effects")
    if len(tracer.symbols.nodes) > numbers:
        tracer.stop("tensor_value", "a function that runs as a graph of its own reads numbers from data")
    own = set(nodes)
    for node in nodes:
        target = node.args[0] if node.args else None
        outside = isinstance(target, torch.fx.Node) and target not in own and target.op != "placeholder"
        if changes_something(node) and outside:
            tracer.stop("mutation_unknown", "a function that runs as a graph of its own changes a tensor in place")
    for value in builder.inputs:
        if value.node in own:  # changed in place by the node that is to come
            value.node = held.get(id(value), value.placeholder)
    builder.leave_behind(nodes)
    return RecordedCall(nodes, result)


def tensors_in(tracer: Tracer, value: Value) -> Iterator[TensorValue]:
    value = value.realize()
    if isinstance(value, TensorValue):
        yield value
    elif isinstance(value, (ListValue, TupleValue, DictValue)) and value.source is None:
        for part in value.parts():
            yield from tensors_in(tracer, part)
    elif not isinstance(value, ConstantValue):
        tracer.stop("escape", f"a function that runs as a graph of its own gives {value.describe()}")


def _replaced(tracer: Tracer, target: Any, inputs: list[torch.fx.Node], outputs: list[TensorValue]) -> None:
    """Put the node that computes ``outputs`` into the graph, and let the Values be its results."""
    node = tracer.graph.call(target, tuple(inputs))
    for index, value in enumerate(outputs):
        value.node = tracer.graph.item(node, index, value.fake)


@handles(checkpoint)
def _checkpoint(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    options = {name: kwargs[name] for name in CHECKPOINT_OPTIONS if name in kwargs}
    reentrant = kwargs.get("use_reentrant", ConstantValue(None))
    if "context_fn" in kwargs or protocols.as_constant(tracer, reentrant) is not False:
        tracer.stop("call_unknown", "checkpoint is captured with use_reentrant=False and without context_fn")
    others = {name: value for name, value in kwargs.items() if name not in options and name != "use_reentrant"}
    call = record(tracer, args[0], list(args[1:]), others)
    outputs = call.tensors(tracer)
    if outputs:
        # PyTorch saves the tensors that the function is called with; what is behind a name or in a list is read anew.
        # So is what the function changes in place.
        arguments = [value.if_realized() if isinstance(value, LazyValue) else value for value in args[1:]]
        saved = {value.node for value in arguments if isinstance(value, TensorValue)} - call.changed
        inputs = sorted(call.inputs, key=lambda node: node not in saved)
        known = {name: protocols.as_constant(tracer, value) for name, value in options.items()}
        node = Checkpointed(
            call.module(inputs, outputs), known, len(saved.intersection(inputs)), changes=bool(call.changed)
        )
        _replaced(tracer, node, inputs, outputs)
        tracer.graph.autograd.checkpointed.update(dict.fromkeys(call.nodes))
    return call.result


@handles(torch.cond)
def _cond(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    arguments = dict(zip(("pred", "true_fn", "false_fn", "operands"), args, strict=False)) | kwargs
    condition = arguments["pred"].realize()
    operands = protocols.unpack(tracer, arguments["operands"]) if "operands" in arguments else []
    if not isinstance(condition, TensorValue):
        chosen = arguments["true_fn"] if protocols.truth(tracer, condition) else arguments["false_fn"]
        return protocols.call(tracer, chosen, operands)
    branches = [record(tracer, arguments[name], operands, {}) for name in ("true_fn", "false_fn")]
    outputs = [branch.tensors(tracer) for branch in branches]
    _check_alike(tracer, branches, outputs)
    inputs = list(dict.fromkeys(node for branch in branches for node in branch.inputs))
    modules = [branch.module(inputs, values) for branch, values in zip(branches, outputs, strict=True)]
    for value, other in zip(*outputs, strict=True):
        value.fake = other.fake if other.fake.requires_grad else value.fake
    _replaced(tracer, Choice(*modules), [condition.node, *inputs], outputs[0])
    return branches[0].result


def _check_alike(tracer: Tracer, branches: list[RecordedCall], outputs: list[list[TensorValue]]) -> None:
    """Both branches compute the same number of tensors, of the same kinds, and give nothing else."""
    kinds = [[(v.fake.shape, v.fake.stride, v.fake.dtype, v.fake.device) for v in values] for values in outputs]
    counts = [len(list(tensors_in(tracer, branch.result))) for branch in branches]
    structures = [_structure(branch.result) for branch in branches]
    changed = any(changes_something(node) for branch in branches for node in branch.nodes)
    if changed or kinds[0] != kinds[1] or counts != [len(kinds[0])] * 2 or structures[0] != structures[1]:
        tracer.stop("call_unknown", "the branches of torch.cond give or change different things")


def _structure(value: Value) -> Any:
    value = value.realize()
    if isinstance(value, TensorValue):
        return TensorValue
    if isinstance(value, ConstantValue):
        return ConstantValue, value.content
    return value.python_type(), tuple(_structure(part) for part in value.parts())
