"""Checks of data in a graph, put off until something is done that depends on them: they would cut it in many parts.

A check that fails has the call begin anew as plain Python, whatever was computed by then. So it can wait until an input
is changed, the user's Python runs, or a number is read. What it looks at is summed up where it stood.
"""

from __future__ import annotations

import itertools
from collections.abc import Set
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.shapes.changes import changes_inputs, root_of, written_roots
from bothways.fake import thin_outline
from bothways.node_facts import facts_of_call, facts_of_node
from bothways.runtime.gradients import gradients
from bothways.runtime.nodes import require_number, require_true

# What looks at the data of a tensor -> what becomes of the tensor where it stood.
PUT_OFF: dict[Any, str] = {require_true: "all", require_number: "detach"}
# Calls that open (+1) or close (-1) a context, in which a check would stand alone.
CONTEXTS = {
    torch_compat.enter_autocast: 1,
    torch_compat.exit_autocast: -1,
    torch_compat.enter_inference_mode: 1,
    torch_compat.exit_inference_mode: -1,
}


def put_off_checks(graph: torch.fx.Graph) -> None:
    """Move each check of a tensor's data behind all that it can wait for."""
    if not any(node.target in PUT_OFF for node in graph.nodes) or any(map(_is_differentiated_again, graph.nodes)):
        return
    written = frozenset[torch.fx.Node]().union(*written_roots(graph.nodes))
    waiting: list[torch.fx.Node] = []
    moved: set[torch.fx.Node] = set()
    behind: torch.fx.Node | None = None  # the last node that they can stand behind
    was_on = is_on = torch.is_grad_enabled()
    depth = 0
    for node in list(graph.nodes):
        if waiting and _waits_for_checks(node):
            moved |= _settle(graph, waiting, behind, written)
            waiting, behind = [], None
        if node.target is require_true or (node.target in PUT_OFF and not _is_in(written, node)):
            waiting.append(node)
            behind = None
        if node.target is torch_compat.set_grad_enabled:
            is_on = bool(node.args[0])
        depth += CONTEXTS.get(node.target, 0) if callable(node.target) else 0
        if is_on == was_on and not depth and node not in moved:
            behind = node


def _is_differentiated_again(node: torch.fx.Node) -> bool:
    """Whether a node computes gradients with a history: parts of a graph that run one after the other hand it on, and
    what was computed in one of them at once may have none."""
    return node.target is gradients and node.args[4] is not False


def _waits_for_checks(node: torch.fx.Node) -> bool:
    """Whether a node may only run where the checks before it have not failed."""
    if node.target in PUT_OFF:
        return False
    facts, call = facts_of_node(node), facts_of_call(node.target)
    if node.op == "output" or call.opaque or call.has_effects or call.region is not None:
        return True
    if facts.is_number or facts.as_captured or facts.watched is not None or changes_inputs(node):
        return True
    return any(map(_may_be_index, node.all_input_nodes))


def _may_be_index(node: torch.fx.Node) -> bool:
    """Whether it holds whole numbers on a device where one that is out of range ends the process."""
    example = node.meta.get("example_value")
    whole = isinstance(example, torch.Tensor) and example.dtype in (torch.int64, torch.int32)
    return whole and example.device.type != "cpu"  # type: ignore[union-attr]


def _settle(
    graph: torch.fx.Graph, checks: list[torch.fx.Node], behind: torch.fx.Node | None, written: Set[torch.fx.Node]
) -> set[torch.fx.Node]:
    """Move checks, and what is to come before them; gives what comes earlier than it did."""
    if behind is None or behind is checks[-1]:
        return set()
    detached = _detached_later(graph, behind, written)
    for node in detached:
        behind.append(node)
        behind = node
    for check in checks:
        (looked_at,) = check.all_input_nodes
        with graph.inserting_before(check):
            told = graph.call_method(PUT_OFF[check.target], (looked_at,))
        if "stack_trace" in check.meta:
            told.meta["stack_trace"] = check.meta["stack_trace"]
        example = looked_at.meta.get("example_value")
        if isinstance(example, torch.Tensor):
            dtype = torch.bool if check.target is require_true else example.dtype
            told.meta["example_value"] = thin_outline((), (), dtype, example.device)
        check.replace_input_with(looked_at, told)
        behind.append(check)
        behind = check
    return set(detached)


def _detached_later(
    graph: torch.fx.Graph, behind: torch.fx.Node, written: Set[torch.fx.Node]
) -> list[torch.fx.Node]:
    """What detaches later what is known by then, as a loss that is returned: its history need not leave."""
    known = set(itertools.takewhile(lambda node: node is not behind.next, graph.nodes))
    return [
        node
        for node in graph.nodes
        if node not in known and _detaches(node) and node.args[0] in known and not _is_in(written, node)
    ]


def _detaches(node: torch.fx.Node) -> bool:
    return getattr(node.target, "__name__", node.target) == "detach"


def _is_in(written: Set[torch.fx.Node], reader: torch.fx.Node) -> bool:
    """Whether something of the graph writes to what a node reads."""
    return any(root_of(node) in written for node in reader.all_input_nodes)
