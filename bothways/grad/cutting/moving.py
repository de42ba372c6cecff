"""Which values of a captured graph autograd may follow: a value that it certainly does not is no place to cut.

What is in doubt is followed: views taken without gradients, and all that may share memory with what is changed by a
value that is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.node_facts import facts_of_call, facts_of_node, note_of_node
from bothways.ops import Gives
from bothways.runtime.gradients import gradients
from bothways.runtime.nodes import set_data_

Node = torch.fx.Node

_DETACHING = ("detach", torch.detach)


def followed(graph: torch.fx.Graph, inputs: Sequence[Any]) -> set[Node]:
    """The values whose history people outside may ask for; ``inputs`` are those of all placeholders, or of those that
    are tensors."""
    followed_nodes = _begin(graph, inputs)
    without_grad = nodes_without_grad(graph)
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    while True:
        before = len(followed_nodes)
        for node in nodes:
            if node not in followed_nodes and _follows(node, followed_nodes, node in without_grad):
                followed_nodes.add(node)
            if node in followed_nodes and node not in without_grad and may_write(node):
                for written in node.all_input_nodes:
                    followed_nodes.update(_sharing(written))
        if len(followed_nodes) == before:
            return followed_nodes


def lead_to_each_other(results: Iterable[Node], followed_nodes: set[Node]) -> bool:
    """Whether autograd comes from a result to another one. That of a gradient goes through what its formulas read,
    which is not all that it is the gradient of."""
    asked = followed_nodes.intersection(results)
    for result in asked:
        pending, seen = [result], {result}
        while pending:
            above = _above(pending.pop())
            new = [one for one in above if one in followed_nodes and one not in seen]
            if not asked.isdisjoint(new):
                return True
            seen.update(new)
            pending += new
    return False


def _above(node: Node) -> list[Node]:
    """What the history of a value may go to next."""
    if node.target is not gradients:
        return node.all_input_nodes
    roots: Any = node.args[0]
    return [
        *itertools.chain.from_iterable(
            root.all_input_nodes if ops.of_node(root).forgets_result else (root,) for root in roots
        ),
        *(one for one in node.all_input_nodes if one not in roots),
    ]


def _begin(graph: torch.fx.Graph, inputs: Sequence[Any]) -> set[Node]:
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    ofs = [node for node in placeholders if isinstance(node.meta.get("example_value"), torch.Tensor)]
    if len(tensors) != len(ofs):
        return set(placeholders)
    return {node for node, tensor in zip(ofs, tensors, strict=True) if tensor.requires_grad}


def nodes_without_grad(graph: torch.fx.Graph) -> set[Node]:
    """The nodes that run while gradients are off."""
    without: set[Node] = set()
    is_on = torch.is_grad_enabled()
    for node in graph.nodes:
        if node.target is torch_compat.set_grad_enabled:
            is_on = bool(node.args[0])
        if not is_on:
            without.add(node)
    return without


def _follows(node: Node, followed_nodes: set[Node], without_grad: bool) -> bool:
    if node.kwargs.get("requires_grad") or node.target in ("requires_grad_", torch.nn.Parameter):
        return True
    example = node.meta.get("example_value")
    if isinstance(example, torch.Tensor) and not (example.is_floating_point() or example.is_complex()):
        return False
    if node.op == "get_attr":
        return True
    if node.target in _DETACHING or facts_of_call(node.target).detaches:
        return False
    if node.target is gradients and node.args[4] is False:
        return False
    if followed_nodes.isdisjoint(node.all_input_nodes):
        # What is not one of PyTorch's operations may find tensors elsewhere.
        return facts_of_call(node.target).opaque or facts_of_call(node.target).has_effects
    return not without_grad or ops.of_node(node).gives is not Gives.FRESH


def may_write(node: Node) -> bool:
    """Whether a node may write to what it is given, as far as its record tells."""
    known = ops.of_node(node)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    return bool(
        known.writes or known.writes_left or name.endswith("_") or "out" in node.kwargs or node.kwargs.get("inplace")
        or facts_of_node(node).is_in_place
        or facts_of_call(node.target).opaque or facts_of_call(node.target).has_effects
    )  # fmt: skip


def mark_data(graph: torch.fx.Graph) -> None:
    """Mark what may be changed by way of its ``.data``, or is given other data."""
    for node in graph.nodes:
        if (node.target is getattr and node.args[1] == "data") or node.target is set_data_:
            for value in _sharing(node.all_input_nodes[0]):
                note_of_node(value, changes_as_data=True)


def _sharing(node: Node) -> Iterable[Node]:
    """A value, what it may be a view of, and all views of those."""
    above = node
    while above.args and isinstance(above.args[0], Node) and ops.of_node(above).gives is not Gives.FRESH:
        above = above.args[0]
    pending, seen = [above, node], set()
    while pending:
        one = pending.pop()
        if one not in seen and one.op != "output":
            seen.add(one)
            pending.extend(user for user in one.users if ops.of_node(user).gives is not Gives.FRESH)
    return seen
