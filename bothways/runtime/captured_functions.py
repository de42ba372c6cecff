"""Custom autograd functions whose two bodies are graphs: one node of a graph calls them, as autograd calls the user's.

A body takes a context, which it does not read, and tensors. The forward gives its results and a list of what the
backward needs; the backward takes gradients and that list, and gives a gradient for each tensor argument. Nothing of
the user's Python runs; all that the context was told is kept here.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.node_facts import body_of, facts_of_node, note_body
from bothways.runtime.function_bodies import FunctionFacts, Run, full_bodies, plain_bodies, spelled_runs
from bothways.runtime.nodes import ApplyFunction, FromGraph


@dataclass(eq=False)
class FunctionBody:
    """What is known of the module of a body: its function, and whether it turns gradients off and on again itself.

    ``plain`` is the same without that, ``bound`` what applies the function; each with the modules it was made of, as
    copies of a module share this record.
    """

    facts: FunctionFacts
    is_spelled: bool = False
    plain: tuple[weakref.ref[Any], torch.fx.GraphModule] | None = None
    bound: tuple[weakref.ref[Any], weakref.ref[Any], Run] | None = None


def bound(facts: FunctionFacts, count: int, forward: Run, backward: Run) -> Run:
    """The function of ``count`` tensors, arguments first, that autograd goes back through: a node as the user's is.

    It is called in every hit, so what a function does not need is not there.
    """
    arguments = facts.tensor_count
    is_plain = not facts.held and not facts.fixed and count == arguments
    bodies = (plain_bodies if is_plain else full_bodies)(facts, forward, backward)
    names = {"__module__": facts.cls.__module__, "__qualname__": facts.cls.__qualname__}
    function = type(facts.cls.__name__, (torch.autograd.Function,), {**names, **bodies})
    apply: Run = torch_compat.unchecked_apply(function)
    if is_plain:
        return apply

    def run(*values: Any) -> Any:
        return apply(*values[:arguments], values[arguments:])  # the others are no arguments to autograd

    return run


class CapturedFunction(ApplyFunction):
    """One node for a custom function whose bodies were captured."""

    def __init__(
        self,
        facts: FunctionFacts,
        forward: torch.fx.GraphModule,
        backward: torch.fx.GraphModule,
        count: int,
    ) -> None:
        super().__init__(facts.cls, tuple(map(FromGraph, range(count))), opaque=facts.opaque, reads=facts.reads)
        self.facts, self.forward, self.backward = facts, forward, backward
        self._run: Run | None = None

    def __call__(self, *values: Any) -> Any:
        if self._run is None:
            self._run = bound(self.facts, len(values), self.forward.forward, self.backward.forward)
        return self._run(*values)


def autograd_function_apply(
    fwd: torch.fx.GraphModule,
    bwd: torch.fx.GraphModule,
    *values: Any,
    args_tensor_mask: Sequence[bool],
    non_differentiable_idx: Sequence[int],
) -> Any:
    """The same, for graphs in which the bodies are modules: ``self.fwd_body_0`` and ``self.bwd_body_0``."""
    body: FunctionBody = body_of(fwd)
    known = body.bound
    if known is None or known[0]() is not fwd or known[1]() is not bwd:
        forward, backward = spelled_runs(fwd, bwd, without_spelling)
        known = weakref.ref(fwd), weakref.ref(bwd), bound(body.facts, len(values), forward, backward)
        body.bound = known
    return known[2](*values)


def without_spelling(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A body that leaves it to its caller whether gradients are on."""
    body: FunctionBody = body_of(module)
    if not body.is_spelled:
        return module
    if body.plain is None or body.plain[0]() is not module:
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        for node in [node for node in graph.nodes if facts_of_node(node).is_spelling]:
            graph.erase_node(node)
        plain = torch.fx.GraphModule(module, graph)
        note_body(plain, FunctionBody(body.facts))
        body.plain = weakref.ref(module), plain
    return body.plain[1]
