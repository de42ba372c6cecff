"""What a captured backward calls that is neither Python to look into nor one operation."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.backward.compiled_nodes import OpenedGraph, compiled_node, compiled_node_as_told
from bothways.backward.engine import CapturingEngine
from bothways.backward.formulas import cpp_hook
from bothways.backward.steps import call_later
from bothways.capture.guards.sources import Attr
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.grad.halves.partition import NotRepeatable

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


@handles(cpp_hook)
def _cpp_hook(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    hook, grad = args
    if not isinstance(grad.realize(), TensorValue):
        return grad
    return tracer.graph.op("call_function", cpp_hook, lambda hook, grad: _like(grad), [hook, grad], {})


def _like(grad: torch.Tensor) -> torch.Tensor:
    """A hook may give another gradient, of the same kind."""
    return _differentiated_again(grad.detach())


def _differentiated_again(grad: torch.Tensor) -> torch.Tensor:
    """A gradient that has a history where gradients are differentiated in turn, as far as capture knows."""
    return grad.requires_grad_(torch.is_grad_enabled() and (grad.is_floating_point() or grad.is_complex()))


@handles(CapturingEngine.queue_callback)
def _queue_callback(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return tracer.inline(call_later, [*args[1:]], kwargs)


@handles(compiled_node)
def _compiled_node(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    opened, *others = (arg.realize() for arg in args)
    assert isinstance(opened, ObjectValue) and isinstance(opened.obj, OpenedGraph) and opened.source is not None
    saved, grads, wanted = (protocols.unpack(tracer, other) for other in others)
    module = _backward_graph(opened.obj, grads)
    if module is None:
        return _as_told(tracer, opened, saved, grads, wanted)
    graph = Attr(Attr(opened.source, "graph"), "wanted_gradients")
    tracer.guard("{s0} is {c0}", graph, opened.obj.graph.wanted_gradients)
    arrived = [grad for grad in grads if isinstance(grad.realize(), TensorValue)]
    return ListValue([ConstantValue(None), *_copied(tracer, module, [*saved, *arrived])])


def _backward_graph(opened: OpenedGraph, grads: Sequence[Value]) -> torch.fx.GraphModule | None:
    """The backward graph of a node for gradients that are laid out like these; None where there is none to copy."""
    graph = opened.graph
    if torch.is_grad_enabled() or torch_compat.is_any_autocast_enabled():
        return None
    fakes = [grad.fake if isinstance(grad := one.realize(), TensorValue) else None for one in grads]
    strides = tuple(None if fake is None else fake.stride for fake in fakes[: graph.result_count])
    if any(type(step) is not int for steps in strides if steps is not None for step in steps):
        return None
    try:
        module: torch.fx.GraphModule | None = graph.backward_to_copy(strides, opened.inputs)
        return module
    except NotRepeatable:
        return None


def _copied(tracer: Tracer, module: torch.fx.GraphModule, values: Sequence[Value]) -> list[Value]:
    """What the operations of a graph give, each recorded as if the program had called it."""
    known: dict[torch.fx.Node, Value] = {}
    inputs = iter(values)

    def value_of(arg: Any) -> Value:
        if isinstance(arg, torch.fx.Node):
            return known[arg]
        if isinstance(arg, (list, tuple)):
            kind = ListValue if isinstance(arg, list) else TupleValue
            return kind([value_of(item) for item in arg])
        return constant_value(arg, tracer)

    for node in module.graph.nodes:
        if node.op == "placeholder":
            known[node] = next(inputs)
        elif node.op == "get_attr":
            known[node] = linked.library_value(tracer, operator.attrgetter(node.target)(module))
        elif node.op == "output":
            return [value_of(result) for result in node.args[0]]
        elif node.target is operator.getitem:
            known[node] = value_of(node.args[0]).realize().get_item(tracer, value_of(node.args[1]))
        else:
            args = [value_of(arg) for arg in node.args]
            kwargs = {name: value_of(arg) for name, arg in node.kwargs.items()}
            known[node] = tracer.graph.op("call_function", node.target, node.target, args, kwargs)
    raise AssertionError("a graph without an output")


def _as_told(
    tracer: Tracer, opened: ObjectValue, saved: list[Value], grads: list[Value], wanted: list[Value]
) -> Value:
    """The node's compiled backward as one node of the graph."""
    holder = tracer.graph.add_object(opened, "node", checked=True)

    def outlines(node: Any, saved: Any, grads: Any, wanted: Any) -> Any:
        gradients = (torch.empty(sizes, dtype=dtype, device=device) for sizes, dtype, device in filter(None, wanted))
        return [_differentiated_again(grad) for grad in gradients]

    args: list[Any] = [holder, ListValue(saved), ListValue(grads), ListValue(wanted)]
    results = iter(protocols.unpack(
        tracer, tracer.graph.op("call_function", compiled_node_as_told, outlines, args, {})
    ))
    nones = [isinstance(one := outline.realize(), ConstantValue) and one.content is None for outline in wanted]
    return ListValue([ConstantValue(None) if is_none else next(results) for is_none in nones])
