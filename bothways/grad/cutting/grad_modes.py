"""Cuts a captured graph that begins without gradients and turns them on, where it does.

What is differentiated is known only when gradients are on: a program goes on after a break inside of ``no_grad``, say,
and the training step behind it is in the same graph. So the switch itself runs as captured, and what lies before and
behind it are graphs of their own, each compiled when it first runs, in its own mode.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.cutting.parts import CompilePart
from bothways.grad.cutting.sections import OpenContexts, Section, chained
from bothways.grad.tracing.sizes import is_size
from bothways.node_facts import Region, facts_of_call


def split_where_grad_begins(graph: torch.fx.GraphModule, compile_part: CompilePart) -> torch.fx.GraphModule | None:
    """The graph as a chain of parts; None where a switch lies inside of another context, which parts cannot share."""
    nodes = [node for node in graph.graph.nodes if node.op not in ("placeholder", "output") and not is_size(node)]
    first, last = _switches(nodes)
    if _is_inside(nodes[:first]) or _is_inside(nodes[:last]):
        return None
    spans = (
        (nodes[:first], False), (nodes[first : first + 1], True), (nodes[first + 1 : last], False),
        (nodes[last : last + 1], True), (nodes[last + 1 :], False),
    )  # fmt: skip
    sections = [Section(list(span), as_captured) for span, as_captured in spans if span]
    return chained(graph, sections, compile_part)


def _switches(nodes: Sequence[torch.fx.Node]) -> tuple[int, int]:
    """Where gradients are turned on first, and where they are turned off for good: behind the end, if never."""
    on = [index for index, node in enumerate(nodes) if turns_grad(node, True)]
    off = (index for index, node in enumerate(nodes) if index > on[-1] and turns_grad(node, False))
    return on[0], next(off, len(nodes))


def _is_inside(before: Sequence[torch.fx.Node]) -> bool:
    """Whether a context or a region of hooks is open behind these nodes."""
    contexts = functools.reduce(OpenContexts.behind, before, OpenContexts.now())
    regions = [facts_of_call(node.target).region for node in before]
    return bool(contexts.entered) or regions.count(Region.BEGIN) > regions.count(Region.END)


def turns_grad(node: torch.fx.Node, on: bool) -> bool:
    """Whether a node turns gradients on, or off."""
    return node.target is torch_compat.set_grad_enabled and bool(node.args[0]) is on
