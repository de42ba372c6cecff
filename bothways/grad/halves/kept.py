"""What a backward that is differentiated again reads of the forward: the tensors that autograd itself has saved.

Eager's saved tensors have a history, by which second derivatives find their way through the first backward into the
forward. Here the forward's node gives them as results that the caller never sees, and the backward takes them as
inputs: neither runs again what the other has done. Where a value's history is not known for certain,
``NotDifferentiable`` is raised.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.fx

from bothways.grad.halves.partition import owners_of, reachable
from bothways.grad.tracing.traced import Joint, NotDifferentiable
from bothways.node_facts import facts_of_node

Node = torch.fx.Node

_DETACH = torch.ops.aten.detach.default


@dataclass(frozen=True)
class Connections:
    """What the node of a graph gives besides the graph's own results, and which of all its results it saves.

    ``hidden`` and ``constant`` are places in the forward, ``saved`` numbers of results, the hidden ones last. Second
    derivatives do not go through what is constant.
    """

    hidden: tuple[int, ...]
    saved: tuple[int, ...]
    constant: tuple[int, ...]

    def saved_nodes(self, joint: Joint) -> list[Node]:
        """What the node saves, of a graph that was traced with the hidden results."""
        order = list(joint.recorder.graph.nodes)
        results = [joint.results[number] for number in self.saved]
        return [*results, *(order[place + len(joint.tangents)] for place in self.constant)]


def connections(joint: Joint, needs_grad: tuple[bool, ...]) -> Connections:
    """What eager keeps for the backward of a joint graph that was traced to be differentiated again."""
    connected, constant = _kept(joint, needs_grad)
    check_complete(joint, joint.gradients, [*joint.primals, *joint.tangents, *connected, *constant])
    places = {node: place - len(joint.tangents) for place, node in enumerate(joint.recorder.graph.nodes)}
    results = {node: number for number, node in enumerate(joint.results)}
    hidden = sorted((node for node in connected if node not in results), key=places.__getitem__)
    saved = sorted(results[node] for node in connected if node in results)
    return Connections(
        tuple(places[node] for node in hidden),
        (*saved, *range(len(joint.results), len(joint.results) + len(hidden))),
        tuple(sorted(places[node] for node in constant)),
    )


def _kept(joint: Joint, needs_grad: tuple[bool, ...]) -> tuple[set[Node], set[Node]]:
    """What autograd has saved of the forward besides inputs and windows on them: with a history, and without."""
    owners = owners_of(joint)
    inputs = dict(zip(joint.primals, needs_grad, strict=True))
    kept: tuple[set[Node], set[Node]] = set(), set()
    for node, variable in joint.variables.items():
        if node not in joint.forward_nodes or node.op != "call_function":
            continue
        owner = owners[node]
        if owner not in inputs:
            kept[not variable.requires_grad].add(node)
        elif inputs[owner] and _is_connected_window(node, owner) != variable.requires_grad:
            raise NotDifferentiable("a window on an input that autograd does not know as one")
    return kept


def check_complete(joint: Joint, gradients: Sequence[Node | None], inputs: Sequence[Node]) -> None:
    """Raise unless a backward from these inputs is seen by autograd as a whole.

    It may take windows on inputs again, but nothing else of the forward; and no custom function in it may hide what it
    does.
    """
    owners = owners_of(joint)
    wanted = [node for node in gradients if node is not None]
    needed = reachable(wanted, stop=frozenset(inputs))
    again = needed & joint.forward_nodes
    if any(node.op == "call_function" and owners[node] not in joint.primals for node in again):
        raise NotDifferentiable("the backward reads what autograd has not saved")
    backward = needed - again
    if any(facts_of_node(node).without_grad for node in backward):
        raise NotDifferentiable("a part of the backward is not to be differentiated")
    read = again.intersection(itertools.chain(wanted, *(node.all_input_nodes for node in backward)))
    if any(node.op == "call_function" and node not in joint.variables for node in read):
        raise NotDifferentiable("the backward reads a window that autograd has not saved")


def _is_connected_window(node: Node, owner: Node) -> bool:
    """Whether a view of an input has a gradient that goes to that input, by the operations that take it."""
    while node is not owner:
        if node.target is _DETACH:
            return False
        if facts_of_node(node).without_grad:
            raise NotDifferentiable("a window that was taken behind autograd's back")
        node = node.all_input_nodes[0]
    return True
