"""The autograd node of a tensor: whether there is one is known, the rest is eager's own when the graph has run.

An operation whose node leaves the captured function, or is hooked, runs as it was captured. What capture would have
to know about the node itself stops the capture.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.fx

from bothways.capture.guards.sources import Attr
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.hooks.hooks import on_tensor, register
from bothways.capture.values.tensors.moments import TensorMoment, act_at, result_of, watch_node
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.errors import Break
from bothways.runtime.hooks import hold_grad_fn

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

HOOKS = {"register_hook": "grad_fn.register_hook", "register_prehook": "grad_fn.register_prehook"}


def grad_fn_of(tracer: Tracer, tensor: TensorValue) -> Value:
    """``tensor.grad_fn``."""
    as_given = tensor.obj is not None and tensor.node is tensor.placeholder
    node = tensor.obj.grad_fn if tensor.obj is not None and as_given else tensor.fake.meta.grad_fn
    if as_given and tensor.source is not None:
        tracer.guard("{s0}.grad_fn is None" if node is None else "{s0}.grad_fn is not None", tensor.source)
    return ConstantValue(None) if node is None else GradFnValue(tracer, TensorMoment.now(tracer, tensor))


def asks_for_nodes(code: types.CodeType, break_: Break) -> bool:
    """Whether autograd nodes are looked at where a frame stops, or may be behind that: each leads to all before it."""
    return "grad_fn" in code.co_names or "grad_fn" in break_.reason


def watch_nodes(graph: torch.fx.Graph) -> None:
    """Have the very operations run that tensors of a graph may have their history from: their nodes are eager's own."""
    for node in graph.nodes:
        example = node.meta.get("example_value")
        has_history = isinstance(example, torch.Tensor) and (example.is_floating_point() or example.is_complex())
        if has_history and node.op in ("call_function", "call_method"):
            watch_node(node)


class GradFnValue(Value):
    """An autograd node."""

    def __init__(self, tracer: Tracer, moment: TensorMoment) -> None:
        self.tracer, self.moment = tracer, moment
        self._fake = moment.tensor.fake.meta.grad_fn  # kept: one node is one object as long as something holds it
        self._held: torch.fx.Node | None = None
        if moment.is_input:
            assert moment.tensor.source is not None
            self.source = Attr(moment.tensor.source, "grad_fn")

    def python_type(self) -> type:
        self.tracer.stop("attribute_unknown", "the type of a computed tensor's grad_fn is known when the graph has run")

    def describe(self) -> str:
        return "the grad_fn of a tensor"

    def name_hint(self) -> str:
        return "grad_fn"

    def identity(self) -> object:
        return self._fake

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in HOOKS or name == "name":
            return linked.BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name in HOOKS:
            self.moment.watch_node()
            return register(tracer, on_tensor(self.moment, HOOKS[name]), [*args, *kwargs.values()])
        real = self.moment.tensor.obj
        if name == "name" and self.source is not None and real is not None and real.grad_fn is not None:
            label = real.grad_fn.name()
            tracer.guard("{s0}.name() == {c0}", self.source, label)
            return ConstantValue(label)
        return super().call_method(tracer, name, args, kwargs)

    def parts(self) -> Iterable[Value]:
        return [self.moment.tensor]

    def rebuild(self, emitter: Emitter) -> str:
        watch_nodes(emitter.tracer.graph.graph)  # who has it can go on to those before it
        self.moment.watch_node()
        if not self.moment.has_passed(emitter.tracer):
            return f"{emitter.rebuild(self.moment.tensor)}.grad_fn"
        if self._held is None:
            self._held = act_at(emitter.tracer, (self.moment,), self.moment.last, hold_grad_fn)
        return f"{result_of(emitter, self._held, 'held')}[0]"
