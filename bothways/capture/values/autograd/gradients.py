"""``loss.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad`` in captured code.

A backward is one node that computes gradients. What autograd would do with them, calls of hooks and the sums in
``.grad``, is captured as the Python that it is, in autograd's order. The graph's history says beforehand what the
backward comes to; where that cannot be told the capture stops, and the call runs on PyTorch's engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.guards.sources import Attr
from bothways.capture.shapes.autograd_history import AutogradHistory, Untold
from bothways.capture.shapes.fakes import fake_like
from bothways.capture.standins import gradients as standins
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.tensors import SPECIAL_METHODS, TensorValue
from bothways.runtime.gradients import gradients

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

NONE = ConstantValue(None)
IMPLICIT = "grad can be implicitly created only for scalar outputs"


@dataclass(frozen=True)
class BackwardCall:
    """One call: from which tensors, with which gradients of theirs."""

    roots: list[TensorValue]
    tangents: list[TensorValue]
    retain_graph: bool
    create_graph: bool


def _backward_method(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > len(names) or not set(names).issuperset(given):
        tracer.stop("backward", "Tensor.backward is called with arguments it does not know")
    return _backward(tracer, [tensor], [given.get("gradient", NONE)], given)


SPECIAL_METHODS["backward"] = _backward_method


@handles(torch.Tensor.backward)
def _backward_of(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return protocols.call(tracer, protocols.get_attr(tracer, args[0], "backward"), list(args[1:]), kwargs)


@handles(torch.autograd.backward)
def _autograd_backward(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    names = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > len(names) or not set(names).issuperset(given) or "grad_variables" in given:
        tracer.stop("backward", "torch.autograd.backward is called with arguments it does not know")
    tensors = _tensors(tracer, given["tensors"])
    return _backward(tracer, tensors, _several(tracer, given.get("grad_tensors", NONE), len(tensors)), given)


@handles(torch.autograd.grad)
def _grad(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    names = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused")
    given = dict(zip(names, args, strict=False)) | kwargs
    known = {*names, "is_grads_batched", "materialize_grads"}
    if len(args) > len(names) or not known.issuperset(given) or _flag(tracer, given, "is_grads_batched"):
        tracer.stop("backward", "torch.autograd.grad is called in a way that is not captured")
    outputs, inputs = _tensors(tracer, given["outputs"]), _tensors(tracer, given["inputs"])
    call = _call(tracer, outputs, _several(tracer, given.get("grad_outputs", NONE), len(outputs)), given)
    materialize = _flag(tracer, given, "materialize_grads")
    found = _gradients(tracer, call, inputs)
    unused = given.get("allow_unused", NONE).realize()
    if any(gradient is None for gradient in found) and not materialize and not protocols.truth(tracer, unused):
        tracer.stop("op_failed", torch_compat.UNUSED)
    results: list[Value] = []
    for gradient, tensor in zip(found, inputs, strict=True):
        if gradient is None and materialize:
            results.append(tracer.inline(standins.no_gradient, [tensor], {}))
        else:
            results.append(NONE if gradient is None else gradient)
    return TupleValue(results)


def _backward(tracer: Tracer, tensors: list[TensorValue], tangents: Sequence[Value], given: Kwargs) -> Value:
    call = _call(tracer, tensors, tangents, given)
    history = history_of(tracer)
    wanted = given.get("inputs", NONE).realize()
    if isinstance(wanted, ConstantValue) and wanted.content is None:
        leaves = [_leaf_at(tracer, node) for node in history.leaves([root.node for root in call.roots])]
    else:
        leaves = _tensors(tracer, wanted)
        if not leaves:
            tracer.throw(RuntimeError, "`inputs` argument to `backward()` cannot be empty.")
    for leaf in leaves:
        if not history.of(leaf.node).is_leaf:
            tracer.stop("backward", "the gradient of a tensor that is no leaf is kept")
    found = _gradients(tracer, call, leaves)
    for leaf, gradient in zip(leaves, found, strict=True):
        if gradient is not None:
            _accumulate(tracer, leaf, gradient, call.create_graph)
    return NONE


def _accumulate(tracer: Tracer, leaf: TensorValue, gradient: TensorValue, create_graph: bool) -> None:
    """What autograd does with the gradient of a leaf: it calls hooks, and adds it to what is there."""
    hooks = _hooks_from_outside(tracer, leaf, "_backward_hooks")
    after = _hooks_from_outside(tracer, leaf, "_post_accumulate_grad_hooks")
    tracer.inline(
        standins.accumulate,
        [leaf, gradient, ListValue(hooks), ListValue(after), ConstantValue(create_graph)],
        {},
    )


def _hooks_from_outside(tracer: Tracer, leaf: TensorValue, name: str) -> list[Value]:
    """The hooks that the caller has registered on a tensor, in their order."""
    if leaf.obj is None or leaf.source is None:
        return []
    hooks = getattr(leaf.obj, name)
    source = Attr(leaf.source, name)
    if hooks is None:
        tracer.guard("{s0} is None", source)
        return []
    tracer.stop("hook", "a tensor from outside has hooks")


def _gradients(tracer: Tracer, call: BackwardCall, inputs: list[TensorValue]) -> list[TensorValue | None]:
    """Record the node that computes gradients, and say which inputs have one."""
    history = history_of(tracer)
    roots = [root.node for root in call.roots]
    if history.comes_from_outside(history.behind(roots)):
        tracer.stop("backward", "the backward comes to what was computed before the call")
    if any(map(history.is_freed, roots)):
        tracer.stop("op_failed", torch_compat.FREED)
    nodes = [tensor.node for tensor in inputs]
    tangents = [tangent.node for tangent in call.tangents]
    try:
        found = history.backward(roots, tangents, nodes, call.retain_graph, call.create_graph)
    except Exception as error:
        tracer.stop("op_failed", f"a backward fails: {error}")
    wanted = [tensor for tensor, gradient in zip(inputs, found, strict=True) if gradient is not None]
    results = tuple(gradient for gradient in found if gradient is not None)
    if not results:
        return [None for _ in inputs]
    flags = ConstantValue(call.retain_graph), ConstantValue(call.create_graph)
    arguments = [TupleValue(list(part)) for part in (call.roots, wanted, call.tangents)]
    recorded = tracer.graph.node(gradients, [*arguments, *flags], tuple(map(fake_like, results)))
    assert isinstance(recorded, TupleValue)
    values = iter(recorded.items)
    first: Any = recorded.items[0]
    history.give(first.node.args[0], results)
    return [next(values) if gradient is not None else None for gradient in found]  # type: ignore[misc]


def _call(tracer: Tracer, roots: list[TensorValue], tangents: Sequence[Value], given: Kwargs) -> BackwardCall:
    """The arguments that all three ways to call have in common."""
    create_graph = _flag(tracer, given, "create_graph")
    retained = given.get("retain_graph", NONE).realize()
    is_default = isinstance(retained, ConstantValue) and retained.content is None
    retain_graph = create_graph if is_default else protocols.truth(tracer, retained)
    complete: list[TensorValue] = []
    for root, tangent in zip(roots, tangents, strict=True):
        value = tangent.realize()
        if isinstance(value, TensorValue):
            if (value.fake.shape, value.fake.dtype) != (root.fake.shape, root.fake.dtype):
                tracer.stop("backward", "a gradient is given that is of another shape or dtype than the tensor")
        else:
            if root.fake.requires_grad and root.fake.meta.numel() != 1:
                tracer.throw(RuntimeError, IMPLICIT)
            value = tracer.inline(standins.first_gradient, [root], {}).realize()
        assert isinstance(value, TensorValue)
        complete.append(value)
    return BackwardCall(roots, complete, retain_graph, create_graph)


def _flag(tracer: Tracer, given: Kwargs, name: str) -> bool:
    return name in given and protocols.truth(tracer, given[name].realize())


def _tensors(tracer: Tracer, value: Value) -> list[TensorValue]:
    value = value.realize()
    items = [value] if isinstance(value, TensorValue) else [item.realize() for item in protocols.unpack(tracer, value)]
    if not all(isinstance(item, TensorValue) for item in items):
        tracer.stop("backward", "a backward is asked of something that is no tensor")
    return items  # type: ignore[return-value]


def _several(tracer: Tracer, value: Value, count: int) -> list[Value]:
    value = value.realize()
    if isinstance(value, ConstantValue) and value.content is None:
        return [NONE] * count
    given: list[Value] = [value] if isinstance(value, TensorValue) else protocols.unpack(tracer, value)
    if len(given) != count:
        tracer.stop("backward", "there are not as many gradients as tensors")
    return given


def _leaf_at(tracer: Tracer, node: torch.fx.Node) -> TensorValue:
    leaf = tracer.graph.autograd.leaf_at(node)
    if leaf is None:
        tracer.stop("backward", f"a backward comes to a leaf of which nothing is known ({node.name})")
    return leaf


def history_of(tracer: Tracer) -> AutogradHistory:
    """What autograd knows of the graph so far."""
    try:
        return tracer.graph.autograd.history()
    except Untold as reason:
        tracer.stop("backward", str(reason))
