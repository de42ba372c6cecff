"""``torch.vmap``: the function is captured for one example, and one node maps it over all of them.

What the function recorded becomes a graph of its own (``hooks/own_graphs.py``), which PyTorch's own ``vmap`` runs: on
tensors without data when shapes are asked for and when the graph is traced, so that kernels are made of what it comes
to. Gradients inside, those of each example, are a node of the same kind, with PyTorch's ``grad``; so are Jacobians.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.shapes.changes import changes_something
from bothways.capture.shapes.fakes import Fake
from bothways.capture.shapes.safe_operations import may_draw
from bothways.capture.standins import mapping as standins
from bothways.capture.values.autograd.backward_runs import history_of
from bothways.capture.values.autograd.transforms import refuse_hooks
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.hooks.own_graphs import RecordedCall, record, tensors_in
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.node_facts import facts_of_call
from bothways.runtime.mapped import Differentiated, Mapped

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


@handles(standins.is_mapping)
def _is_mapping(tracer: Tracer, /) -> Value:
    return ConstantValue(tracer.graph.levels.mapping > 0)


@handles(standins.refuse)
def _refuse(tracer: Tracer, /) -> Value:
    tracer.stop("transform", "vmap is called with dimensions, chunks or random numbers that are not captured")


@handles(standins.mapped)
def _mapped(
    tracer: Tracer, /, function: Value, examples: Value, whole: Value, ones: Value, dims: Value, out_dims: Value
) -> Value:
    taken, batches = _tensors(tracer, ones), _tensors(tracer, whole)
    if any(value.overrides_functions() for value in batches):
        tracer.stop("transform", "vmap is given tensors of a class of their own")
    tracer.graph.leave_behind(value.node for value in taken)
    call = _recorded(tracer, function, examples)
    numbers = [protocols.as_constant(tracer, value) for value in protocols.unpack(tracer, dims)]
    others = _others(tracer, call, taken)
    outputs = call.tensors(tracer)
    known = {value.node for value in (*taken, *outputs)}
    results = _tensors(tracer, call.result)
    if not results or any(value.node not in known for value in results):
        tracer.stop("transform", "a function that is mapped gives something from outside")
    if outputs:
        module = call.module([*(value.node for value in taken), *others], outputs)
        laid = zip(results, protocols.unpack(tracer, out_dims), strict=True)
        places = {id(value): protocols.as_constant(tracer, dim) for value, dim in laid}
        target = Mapped(module, (*numbers, *(None for _ in others)), tuple(places[id(value)] for value in outputs))
        _become(outputs, _results(tracer, target, [*batches, *others.values()]))
    tracer.graph.levels.bury([*call.nodes, *(value.node for value in taken)])
    return call.result


@handles(standins.derivatives)
def _derivatives(
    tracer: Tracer, /, transform: Value, function: Value, args: Value, chosen: Value, directions: Value
) -> Value:
    """A row of derivatives for each of the tensors that the function gives first, and what it gave."""
    call = _recorded(tracer, function, args)
    own, along = _tensors(tracer, chosen), _tensors(tracer, directions)
    if any(value.overrides_functions() for value in (*own, *along)):
        tracer.stop("transform", "a transform is given tensors of a class of their own")
    others = _others(tracer, call, own)
    outputs = call.tensors(tracer)
    first, _ = protocols.unpack(tracer, call.result)
    roots = _tensors(tracer, first)
    computed = {id(value) for value in outputs}
    if not all(id(value) in computed for value in roots):
        tracer.stop("transform", "a function gives something to a transform that it has not computed")
    name = protocols.as_constant(tracer, transform)
    if name in ("grad", "jacrev"):  # the others go forward, and save nothing
        refuse_hooks(tracer)
    if name == "jacfwd":  # which gives views of all that comes from outside
        known = {value.node for value in (*outputs, *own, *tensors_in(tracer, args))}
        if any(value.node not in known for value in tensors_in(tracer, call.result)):
            tracer.stop("transform", "a function gives something from outside beside its results")
    count = len({id(value) for value in roots})
    module = call.module([*(value.node for value in own), *others], outputs)
    torch_compat.load_forward_formulas()  # while it is no operation of the program's that warns
    results = _results(tracer, Differentiated(module, name, len(own), count), [*own, *along, *others.values()])
    width = (len(results) - len(outputs)) // count
    rows = {id(value): results[at * width : (at + 1) * width] for at, value in enumerate(outputs[:count])}
    _become(outputs, results[width * count :])
    tracer.graph.levels.bury([*call.nodes, *(value.node for value in own)])
    return TupleValue([ListValue([ListValue([*rows[id(value)]]) for value in roots]), call.result])


def _recorded(tracer: Tracer, function: Value, args: Value) -> RecordedCall:
    """What a function does for one example; stops where it is more than to compute tensors."""
    levels = tracer.graph.levels
    levels.mapping += 1
    try:
        call = record(tracer, function, protocols.unpack(tracer, args), {}, is_mapped=True)
    finally:
        levels.mapping -= 1
    for node in call.nodes:
        known = facts_of_call(node.target)
        if known.opaque or known.has_effects or known.region is not None or may_draw(node):
            tracer.stop("transform", f"{node.target} is called inside of vmap")
    own = set(call.nodes)
    if call.changed or any(changes_something(node) and node.args[0] not in own for node in call.nodes):
        tracer.stop("transform", "a function that is mapped changes a tensor in place")
    return call


def _others(
    tracer: Tracer, call: RecordedCall, own: list[TensorValue]
) -> dict[torch.fx.Node, TensorValue | NumberValue]:
    """The tensors and sizes from outside that a function reads besides its arguments, by their nodes."""
    history, known = history_of(tracer), {value.node for value in own}
    others: dict[torch.fx.Node, TensorValue | NumberValue] = {}
    for node in call.inputs:
        if node not in known:
            value: Any = history.of(node)
            is_tensor = isinstance(value, torch.Tensor)
            others[node] = TensorValue(node, Fake(value, value.device)) if is_tensor else NumberValue(value)
    return others


def _results(tracer: Tracer, target: Any, args: Sequence[Value]) -> list[TensorValue]:
    return _tensors(tracer, tracer.graph.op("call_function", target, target, [*args], {}))


def _become(values: list[TensorValue], results: list[TensorValue]) -> None:
    """Let what was captured for one example be what all of them give."""
    for value, result in zip(values, results, strict=True):
        value.node, value.fake = result.node, result.fake


def _tensors(tracer: Tracer, values: Value) -> list[TensorValue]:
    tensors = [value.realize() for value in protocols.unpack(tracer, values)]
    assert all(isinstance(value, TensorValue) for value in tensors)
    return tensors  # type: ignore[return-value]
