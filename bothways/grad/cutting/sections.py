"""Sections of a captured graph, and the chain that calls them one after the other.

A section may begin or end inside of a context, as autocast or ``no_grad``: its part enters that again, and leaves it,
so that each part is a program of its own.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.cutting.parts import CompilePart, Part
from bothways.grad.tracing.sizes import is_size, symbols_of
from bothways.grad.tracing.whys import why_captured
from bothways.node_facts import facts_of_node, note_of_node
from bothways.record import generated
from bothways.runtime.gradients import gradients, laid_out
from bothways.runtime.graph_module import graph_module

# Calls that open (+1) or close (-1) a context the operations in between run under.
CONTEXTS: dict[Any, int] = {
    torch_compat.enter_autocast: 1,
    torch_compat.exit_autocast: -1,
}


@dataclass(frozen=True)
class OpenContexts:
    """What operations at one place of a graph run under: whether there are gradients, and the contexts that the graph
    has entered, by the nodes that do so."""

    grad: bool
    entered: tuple[torch.fx.Node, ...] = ()

    @classmethod
    def now(cls) -> OpenContexts:
        """Those that the graph begins under, which it need not know."""
        return cls(torch.is_grad_enabled())

    def behind(self, node: torch.fx.Node) -> OpenContexts:
        """Those behind a node."""
        if node.target is torch_compat.set_grad_enabled:
            return replace(self, grad=bool(node.args[0]))
        change = CONTEXTS.get(node.target, 0) if callable(node.target) else 0
        if change > 0:
            return replace(self, entered=(*self.entered, node))
        return replace(self, entered=tuple(one for one in self.entered if one is not node.args[0])) if change else self


@dataclass
class Section:
    """Nodes that follow each other and are treated alike, with what they run under at the beginning and at the end."""

    nodes: list[torch.fx.Node] = field(default_factory=list)
    as_captured: bool = False
    before: OpenContexts = field(default_factory=OpenContexts.now)
    after: OpenContexts = field(default_factory=OpenContexts.now)


def begins_or_ends(node: torch.fx.Node) -> bool:
    """Whether a node enters or leaves a context, and does nothing else."""
    return callable(node.target) and (node.target in CONTEXTS or node.target is torch_compat.set_grad_enabled)


def chained(
    graph: torch.fx.GraphModule, sections: list[Section], compile_part: CompilePart
) -> torch.fx.GraphModule:
    """The sections of a graph as a graph that calls one after the other."""
    chain = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    symbols = [node for node in graph.graph.nodes if node.op == "placeholder" and is_size(node)]
    numbers = {node for node in graph.graph.nodes if facts_of_node(node).is_number}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copies[node] = chain.node_copy(node)
    for index, section in enumerate(sections):
        inputs, outputs = interface(section, numbers)
        name = f"{'captured' if section.as_captured else 'compiled'}_{index}"
        inputs = [*symbols, *inputs]
        module = module_of(section, inputs, outputs)
        part = Part(module, name, None if section.as_captured else compile_part, symbols_of(symbols))
        if section.as_captured:
            generated.as_captured(part.module, why_captured(section.nodes), f"part {index + 1} of {len(sections)}")
        call = chain.call_function(part, tuple(copies[node] for node in inputs))
        for position, node in enumerate(outputs):
            copies[node] = chain.call_function(operator.getitem, (call, position))
        symbols += [node for node in section.nodes if node in numbers]  # which the parts behind it know
    result = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    chain.output(torch.fx.map_arg(result.args[0], copies.__getitem__))
    return torch.fx.GraphModule(torch.nn.Module(), chain)


def interface(section: Section, numbers: set[torch.fx.Node]) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """What a section reads from before it, and what is read of it afterwards; all numbers are, as sizes are made of
    them."""
    own = set(section.nodes)
    read = itertools.chain.from_iterable(node.all_input_nodes for node in section.nodes if not begins_or_ends(node))
    inputs = list(dict.fromkeys(node for node in read if node not in own and not is_size(node) and node not in numbers))
    values = (node for node in section.nodes if not begins_or_ends(node))
    return inputs, [node for node in values if node in numbers or any(user not in own for user in node.users)]


def module_of(
    section: Section, inputs: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node]
) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node, placeholder in copies.items():
        placeholder.meta = dict(node.meta)
        if facts_of_node(node).is_number:
            note_of_node(placeholder, is_size=True)
    now = OpenContexts.now()
    _enter_again(graph, section.before, now, copies)
    for node in _with_sizes(section.nodes, copies):
        copies[node] = graph.node_copy(node, copies.__getitem__)
        expected = _strides_of_gradient(node) if section.as_captured else None
        if expected is not None:
            copies[node] = graph.call_function(laid_out, (copies[node], expected))
    _leave(graph, section.after, now, copies)
    graph.output(tuple(copies[node] for node in outputs))
    return graph_module(graph)


def _strides_of_gradient(node: torch.fx.Node) -> tuple[int, ...] | None:
    """How a gradient lies that a backward computes, where that is known: the pieces of one are added up in the order in
    which they come, and from parts that are compiled they may come in another one."""
    origin, shown = node.args[0] if node.args else None, node.meta.get("example_value")
    is_gradient = isinstance(origin, torch.fx.Node) and origin.target is gradients and node.target is operator.getitem
    if not is_gradient or not isinstance(shown, torch.Tensor) or shown.layout is not torch.strided:
        return None
    strides = shown.stride()
    return strides if all(type(number) is int for number in (*shown.shape, *strides)) else None


Copies = dict[torch.fx.Node, torch.fx.Node]


def _enter_again(graph: torch.fx.Graph, contexts: OpenContexts, now: OpenContexts, copies: Copies) -> None:
    """Enter what earlier sections have entered, and have left at their end."""
    for node in contexts.entered:
        copies[node] = graph.node_copy(node)
    if contexts.grad != now.grad:
        graph.call_function(torch_compat.set_grad_enabled, (contexts.grad,))


def _leave(graph: torch.fx.Graph, contexts: OpenContexts, now: OpenContexts, copies: Copies) -> None:
    """Leave what is open at the end, the last first."""
    if contexts.grad != now.grad:
        graph.call_function(torch_compat.set_grad_enabled, (now.grad,))
    for node in reversed(contexts.entered):
        graph.call_function(torch_compat.exit_autocast, (copies[node],))


def _with_sizes(nodes: Sequence[torch.fx.Node], known: Container[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """The nodes of a section, each after those that compute the sizes it takes."""
    done: set[torch.fx.Node] = set()
    for node in nodes:
        pending = [node]
        while pending:
            missing = [
                size for size in pending[-1].all_input_nodes if is_size(size) and size not in known and size not in done
            ]
            if missing:
                pending.extend(missing)
            else:
                done.add(pending[-1])
                yield pending.pop()
