"""Splits a joint graph into a forward graph and a backward graph, and chooses what is saved between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.fx

from bothways.grad.joint import Joint


def saved_values(joint: Joint) -> tuple[torch.fx.Node, ...]:
    """The forward values, other than inputs, that backward operations read."""
    needed: dict[torch.fx.Node, None] = {}
    backward = _reachable([node for node in joint.gradients if node is not None], stop=joint.forward_nodes)
    for node in joint.recorder.graph.nodes:
        if node in backward:
            for argument in node.all_input_nodes:
                if argument in joint.forward_nodes and argument.op == "call_function":
                    needed[argument] = None
    for gradient in joint.gradients:
        if gradient is not None and gradient in joint.forward_nodes and gradient.op == "call_function":
            needed[gradient] = None
    return tuple(node for node in needed if isinstance(node.meta.get("val"), torch.Tensor))


def needed_inputs(joint: Joint) -> tuple[int, ...]:
    """The inputs that the backward reads, given the saved values."""
    used = _reachable([node for node in joint.gradients if node is not None], stop=frozenset(saved_values(joint)))
    return tuple(index for index, node in enumerate(joint.primals) if node in used)


def _reachable(roots: Iterable[torch.fx.Node], stop: frozenset[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes that the roots are computed from, up to and without those in ``stop``."""
    found: set[torch.fx.Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node in found or node in stop:
            continue
        found.add(node)
        pending.extend(node.all_input_nodes)
    return found


def extract(
    joint: Joint,
    inputs: Sequence[torch.fx.Node],
    outputs: Sequence[torch.fx.Node | None],
    kept: Sequence[torch.fx.Node] = (),
) -> torch.fx.GraphModule:
    """The part of the joint graph that computes ``outputs`` from ``inputs``; None stays None.

    ``kept`` are operations that must run even if nobody reads them: those that draw random numbers or check.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    needed = _reachable([*(node for node in outputs if node is not None), *kept], stop=frozenset(inputs))
    constants = {}
    for node in joint.recorder.graph.nodes:
        if node in needed and node not in copies:
            if node.op == "placeholder":
                raise AssertionError(f"{node.name} is needed and not among the inputs")
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "get_attr":
                constants[str(node.target)] = joint.recorder.constants[str(node.target)]
    graph.output(tuple(None if node is None else copies[node] for node in outputs))
    root = torch.nn.Module()
    for name, tensor in constants.items():
        root.register_buffer(name, tensor)
    return torch.fx.GraphModule(root, graph)
