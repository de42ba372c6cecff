"""Custom autograd functions whose two bodies are graphs: one node of a graph calls them, as autograd calls the user's.

A body takes a context, which it does not read, and tensors. The forward gives its results and a list of what the
backward needs; the backward takes gradients and that list, and gives a gradient for each tensor argument. Nothing of
the user's Python runs; all that the context was told is kept here.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.runtime.nodes import ApplyFunction, Given, Reads

# Where the modules of the bodies keep what else is known of their function.
FACTS = "custom_function"
# A body that turns gradients off and on again, as torch.compile's do, and the nodes in it that do that.
SPELLED = "custom_function_spelled"
_PLAIN = "custom_function_plain"


@dataclass(eq=False)
class FunctionFacts:
    """What the context of a custom function was told, and what its arguments were.

    ``mask`` says which of the arguments are tensors; other tensors that the bodies read are no arguments, and have no
    gradients. ``saved`` are the places, among the values that the backward needs, of those that the context saved: they
    are checked for changes and freed after a backward, unless the backward never asks for them (``unpacks``). The
    others are held as they are. ``fixed`` are results without gradients. ``opaque`` and ``reads`` are the node's.
    """

    cls: Any
    mask: tuple[bool, ...]
    fixed: tuple[int, ...]
    saved: tuple[int, ...]
    held: tuple[int, ...]
    unpacks: bool
    opaque: bool = False
    reads: Reads = field(default_factory=Reads)
    _applied: type[torch.autograd.Function] | None = field(default=None, repr=False)

    @property
    def tensor_count(self) -> int:
        return sum(self.mask)

    @property
    def applied(self) -> type[torch.autograd.Function]:
        """What autograd sees: a class with the name of the user's."""
        if self._applied is None:
            names = {"facts": self, "__module__": self.cls.__module__, "__qualname__": self.cls.__qualname__}
            self._applied = type(self.cls.__name__, (GraphFunction,), names)
        return self._applied

    def apply(self, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, values: Sequence[Any]) -> Any:
        """Run the forward on tensor arguments and what else it reads."""
        count = self.tensor_count
        return torch_compat.APPLY_FUNCTION(self.applied, *values[:count], values[count:], forward, backward)


class GraphFunction(torch.autograd.Function):
    """A custom function made of two graphs."""

    facts: FunctionFacts

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        *tensors, others, forward, ctx.body = args
        facts = ctx._forward_cls.facts
        results, kept = forward.forward(None, *tensors, *others)
        if facts.saved:
            ctx.save_for_backward(*(kept if not facts.held else [kept[place] for place in facts.saved]))
        if facts.held:
            ctx.held = [kept[place] for place in facts.held]
        if facts.fixed:
            every = results if isinstance(results, tuple) else (results,)
            ctx.mark_non_differentiable(*(every[place] for place in facts.fixed))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        facts, body = ctx._forward_cls.facts, ctx.body
        kept: tuple[Any, ...] = ()
        if facts.unpacks:
            kept = ctx.saved_tensors
        if facts.held:
            values = dict(zip((*facts.saved, *facts.held), (*kept, *ctx.held), strict=facts.unpacks))
            kept = tuple(values.get(place) for place in range(len(facts.saved) + len(facts.held)))
        elif not facts.unpacks:
            kept = (None,) * len(facts.saved)
        if SPELLED in body.meta:  # whether this backward is differentiated is not for the body to say
            body = without_spelling(body)
        return *body.forward(None, *gradients, *kept), None, None, None


class CapturedFunction(ApplyFunction):
    """One node for a custom function whose bodies were captured."""

    def __init__(
        self,
        facts: FunctionFacts,
        forward: torch.fx.GraphModule,
        backward: torch.fx.GraphModule,
        count: int,
    ) -> None:
        super().__init__(facts.cls, tuple(map(Given, range(count))), opaque=facts.opaque, reads=facts.reads)
        self.facts, self.forward, self.backward = facts, forward, backward

    def __call__(self, *values: Any) -> Any:
        return self.facts.apply(self.forward, self.backward, values)


def autograd_function_apply(
    fwd: torch.fx.GraphModule,
    bwd: torch.fx.GraphModule,
    *values: Any,
    args_tensor_mask: Sequence[bool],
    non_differentiable_idx: Sequence[int],
) -> Any:
    """The same, for graphs in which the bodies are modules: ``self.fwd_body_0`` and ``self.bwd_body_0``."""
    facts: FunctionFacts = fwd.meta[FACTS]
    return facts.apply(fwd, bwd, values)


def without_spelling(body: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A body that leaves it to its caller whether gradients are on."""
    if SPELLED not in body.meta:
        return body
    of, made = body.meta.get(_PLAIN, (None, None))
    if of is None or of() is not body:  # it may be a copy
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(body.graph, {}))
        for node in [node for node in graph.nodes if SPELLED in node.meta]:
            graph.erase_node(node)
        made = torch.fx.GraphModule(body, graph)
        made.meta = {FACTS: body.meta[FACTS]}
        body.meta[_PLAIN] = weakref.ref(body), made
    assert made is not None
    return made
