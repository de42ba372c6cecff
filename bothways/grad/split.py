"""Cuts a captured graph where people outside can look at what autograd does in between.

A tensor that has a hook, keeps its gradient, or is returned although other results are computed from it, must be a
tensor of autograd's own: the graph is cut after it, and the parts are differentiated apart. An operation whose node
is looked at, or that runs somebody's Python in its backward, runs as it was captured, between the parts.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.parts import CompilePart, Part, sized_part
from bothways.grad.sizes import is_size
from bothways.runtime.graph_module import graph_module
from bothways.runtime.nodes import Region, Watched

# Calls that open (+1) or close (-1) a context the operations in between run under.
CONTEXTS: dict[Any, int] = {
    torch_compat.enter_autocast: 1,
    torch_compat.exit_autocast: -1,
}
# Calls that decide what kind of tensors the operations after them make: those are compiled in that very mode.
MODES = (torch_compat.enter_inference_mode, torch_compat.exit_inference_mode)


@dataclass
class Stretch:
    """Nodes that follow each other and are treated alike."""

    nodes: list[torch.fx.Node] = field(default_factory=list)
    as_captured: bool = False


def split(
    graph: torch.fx.GraphModule, compile_part: CompilePart, *, grad: bool
) -> torch.fx.GraphModule | None:
    """The graph as a chain of parts, each compiled when it first runs; None when it can stay whole.

    Without ``grad`` nobody differentiates, and only what runs the user's Python is taken apart.
    """
    stretches = stretches_of(graph.graph, grad)
    if len(stretches) == 1 and not stretches[0].as_captured:
        return None
    return _chained(graph, stretches, compile_part)


def stretches_of(graph: torch.fx.Graph, grad: bool) -> list[Stretch]:
    found: list[Stretch] = []
    boundaries: list[bool] = []  # whether the context at the end of each stretch is that of the graph's beginning
    context = _Context()
    cut = True
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or is_size(node):
            continue
        inside_region = context.regions > 0
        context.meet(node)
        as_captured = inside_region or context.regions > 0 or _goes_around_autograd(node, found)
        if cut or found[-1].as_captured != as_captured:
            found.append(Stretch(as_captured=as_captured))
            boundaries.append(True)
        found[-1].nodes.append(node)
        boundaries[-1] = context.is_plain
        cut = grad and context.grad and _is_seen(node) and not as_captured
    return _whole_contexts(found, boundaries)


class _Context:
    """The state that statements in a graph change: grad mode, contexts, regions."""

    def __init__(self) -> None:
        self.grad = self._grad_before = torch.is_grad_enabled()
        self._depth = 0
        self.regions = 0

    def meet(self, node: torch.fx.Node) -> None:
        if node.target is torch_compat.set_grad_enabled:
            self.grad = bool(node.args[0])
        self._depth += CONTEXTS.get(node.target, 0) if callable(node.target) else 0
        region = getattr(node.target, "region", None)
        self.regions += (region is Region.BEGIN) - (region is Region.END)

    @property
    def is_plain(self) -> bool:
        return self.grad == self._grad_before and not self._depth


def _whole_contexts(found: list[Stretch], plain_after: list[bool]) -> list[Stretch]:
    """Join stretches that a context spans: each part has to be a program of its own."""
    joined: list[Stretch] = []
    open_ = False
    for stretch, plain in zip(found, plain_after, strict=True):
        if open_:
            joined[-1].nodes += stretch.nodes
            joined[-1].as_captured = True
        elif joined and joined[-1].as_captured and stretch.as_captured:
            joined[-1].nodes += stretch.nodes
        else:
            joined.append(Stretch(list(stretch.nodes), stretch.as_captured))
        open_ = not plain
    return joined


def _goes_around_autograd(node: torch.fx.Node, before: list[Stretch]) -> bool:
    """Whether the node has to be autograd's own: it is looked at, runs the user's Python, or reads data behind it."""
    if node.target is operator.getitem and before and before[-1].as_captured:
        producer = node.args[0]
        return isinstance(producer, torch.fx.Node) and producer in before[-1].nodes and not _is_tensor(producer)
    return (
        node.meta.get("watched") is Watched.NODE
        or getattr(node.target, "opaque", False)
        or node.target in MODES
        or node.target is torch_compat.SDPAParams
        or (node.target is getattr and node.args[1] == "data")
        or node.meta.get("as_captured")
        or makes_leaf(node)
    )


def makes_leaf(node: torch.fx.Node) -> bool:
    """Whether the node makes a tensor that asks for its own gradient, as ``torch.zeros(3, requires_grad=True)``."""
    return bool(node.kwargs.get("requires_grad")) or node.target in ("requires_grad_", torch.nn.Parameter)


def turns_grad_on(node: torch.fx.Node) -> bool:
    return node.target is torch_compat.set_grad_enabled and bool(node.args[0])


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _is_seen(node: torch.fx.Node) -> bool:
    """Whether people outside see the tensor while others are computed from it."""
    if node.meta.get("watched") is Watched.GRADIENT:
        return True
    return len(node.users) > 1 and any(user.op == "output" for user in node.users)


def _chained(
    graph: torch.fx.GraphModule, stretches: list[Stretch], compile_part: CompilePart
) -> torch.fx.GraphModule:
    chain = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    symbols = [node for node in graph.graph.nodes if node.op == "placeholder" and is_size(node)]
    numbers = {node for node in graph.graph.nodes if "number" in node.meta}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copies[node] = chain.node_copy(node)
    for index, stretch in enumerate(stretches):
        inputs, outputs = interface(stretch, numbers)
        name = f"{'captured' if stretch.as_captured else 'compiled'}_{index}"
        inputs = [*symbols, *inputs]
        kind = sized_part(list(symbols)) if symbols else Part
        part = kind(module_of(stretch, inputs, outputs), name, None if stretch.as_captured else compile_part)
        call = chain.call_function(part, tuple(copies[node] for node in inputs))
        for position, node in enumerate(outputs):
            copies[node] = chain.call_function(operator.getitem, (call, position))
        symbols += [node for node in stretch.nodes if node in numbers]  # which the parts behind it know
    result = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    chain.output(torch.fx.map_arg(result.args[0], copies.__getitem__))
    return torch.fx.GraphModule(torch.nn.Module(), chain)


def interface(stretch: Stretch, numbers: set[torch.fx.Node]) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """What a stretch reads from before it, and what is read of it afterwards; all numbers are, as sizes are made of
    them."""
    own = set(stretch.nodes)
    read = itertools.chain.from_iterable(node.all_input_nodes for node in stretch.nodes)
    inputs = list(dict.fromkeys(node for node in read if node not in own and not is_size(node) and node not in numbers))
    return inputs, [node for node in stretch.nodes if node in numbers or any(user not in own for user in node.users)]


def module_of(
    stretch: Stretch, inputs: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node]
) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node, placeholder in copies.items():
        placeholder.meta = dict(node.meta)
        if "number" in node.meta:
            placeholder.meta["size"] = True
    for node in _with_sizes(stretch.nodes, copies):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return graph_module(graph)


def _with_sizes(nodes: Sequence[torch.fx.Node], known: Container[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """The nodes of a stretch, each after those that compute the sizes it takes."""
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
