"""Tensor hooks registered inside a compiled function.

A hook only matters when a backward runs, so it is registered for real after the graph has run, on the very
tensor and in the same order; it then runs as the user's Python at its moment. The tensor becomes an output of
the graph, and a differentiator must not pull the tensor's other uses into one node: such a graph is marked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from bothways.capture.values.base import Args, Kwargs, Value
from bothways.capture.values.constants import ConstantValue
from bothways.capture.values.tensors import TensorValue
from bothways.runtime.nodes import Watched

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.tracer import Tracer

# Method -> what eager says about a tensor that needs no gradient.
REFUSALS: dict[str, str] = {
    "register_hook": "cannot register a hook on a tensor that doesn't require gradient",
    "register_post_accumulate_grad_hook": "cannot register a hook on a tensor that doesn't require gradient",
    "retain_grad": "can't retain_grad on Tensor that has requires_grad=False",
}


class Registration(Value):
    """One call of a registering method, and the handle it returns."""

    def __init__(self, tensor: TensorValue, method: str, args: Args, last: torch.fx.Node) -> None:
        self.tensor, self.method, self.args = tensor, method, args
        self.last = last  # the graph's last node when it was registered
        self.node = tensor.node
        self.removed = False
        self.earlier: list[Registration] = []

    def python_type(self) -> type:
        return RemovableHandle

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.values.builtins import BoundBuiltin

        if name in ("remove", "__enter__", "__exit__"):
            return BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__enter__":
            return self
        if name in ("remove", "__exit__"):
            self.removed = True
            return ConstantValue(None)
        return super().call_method(tracer, name, args, kwargs)

    def parts(self) -> Iterable[Value]:
        return [self.tensor, *self.args, *self.earlier]

    def name_hint(self) -> str:
        return "handle"

    def rebuild(self, emitter: Emitter) -> str:
        if self.tensor.node is not self.node or emitter.tracer.graph.changes_after(self.last):
            # The hook belongs to the tensor's history as it was; in-place work since may have given it another.
            emitter.tracer.stop("hook", "tensors are changed in place after a hook was registered")
        for other in self.earlier:
            emitter.rebuild(other)
        call = f"{emitter.rebuild(self.tensor)}.{self.method}({emitter.rebuild_all(self.args)})"
        name = emitter.names.fresh("handle")
        emitter.build(f"{name} = {call}")
        if self.removed:
            emitter.build(f"{name}.remove()")
        return name

    def emit_effects(self, emitter: Emitter) -> None:
        if not self.removed:
            emitter.rebuild(self)


def register(tracer: Tracer, tensor: TensorValue, method: str, args: Args) -> Value:
    """``tensor.register_hook(hook)`` and its like."""
    if not tensor.fake.requires_grad:
        tracer.throw(RuntimeError, REFUSALS[method])
    if method == "register_post_accumulate_grad_hook" and not tensor.fake.meta.is_leaf:
        tracer.throw(RuntimeError, "post accumulate grad hooks cannot be registered on non-leaf tensors")
    if not torch.is_grad_enabled() and tensor.source is None:
        tracer.stop("hook", "a hook is registered where autograd is off")
    made = Registration(tensor, method, list(args), tracer.graph.last_node)
    made.earlier = tracer.registrations[-1:]
    tracer.registrations.append(made)
    tracer.effects.mutated(made)
    tracer.graph.watch(tensor, Watched.GRADIENT)
    return ConstantValue(None) if method == "retain_grad" else made
