"""Nodes of functions that bothways compiled, inside a captured backward: their own backward graph takes their place.

Like a node of a custom function, such a node is opened before the program runs. Capture copies its backward graph into
the program; where a node has none that could be copied, and where nothing is captured, its compiled backward runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.grad.nodes.node import CompiledNode, add_live
from bothways.grad.nodes.windows import behind_windows
from bothways.node_facts import in_graphs
from bothways.runtime.acts import act
from bothways.runtime.nodes import refuse_stand_ins

Gradient = torch.Tensor | None


class OpenedGraph:
    """A node of a compiled function, with what it saved."""

    def __init__(self, node: Any, saved: Sequence[torch.Tensor]) -> None:
        self.node, self.graph, self.saved = node, node.graph, saved

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The inputs of the forward."""
        kept = list(self.saved)
        add_live(kept, self.node, self.graph)
        kept = behind_windows(kept, self.graph.moved_windows, self.node.behind_windows)
        by_place = dict(zip(self.graph.needed_inputs, kept, strict=False))
        by_place.update(zip(self.graph.other_inputs, self.node.others, strict=True))
        return [by_place[place] for place in range(len(by_place))]


class ReleasedNode:
    """The context of a compiled node that the engine has made forget what it saved."""

    def __init__(self, node: Any, saved: Sequence[torch.Tensor]) -> None:
        object.__setattr__(self, "node", node)
        object.__setattr__(self, "saved_tensors", tuple(saved))

    def maybe_clear_saved_tensors(self) -> None:
        """That has happened."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.node, name, value)


def compiled_node(
    opened: OpenedGraph, saved: Sequence[torch.Tensor], grads: Sequence[Gradient], wanted: Sequence[Any]
) -> list[Gradient]:
    """Run the compiled backward of a node. ``wanted`` says how gradients are: (sizes, dtype, device), or None."""
    results = list(CompiledNode.run_backward(ReleasedNode(opened.node, saved), *grads))
    return [None if outline is None else grad for grad, outline in zip(results, wanted, strict=True)]


@in_graphs(opaque=True, has_effects=True)
def compiled_node_as_told(opened: OpenedGraph, saved: Any, grads: Any, wanted: Any) -> list[torch.Tensor]:
    """The same as one node of a graph: a tensor for each gradient that is wanted, without gaps in memory."""
    refuse_stand_ins(compiled_node_as_told)
    act()
    results = []
    for grad, outline in zip(compiled_node(opened, saved, grads, wanted), wanted, strict=True):
        if outline is not None:
            sizes, dtype, device = outline
            results.append(torch.zeros(sizes, dtype=dtype, device=device) if grad is None else grad.contiguous())
    return results

