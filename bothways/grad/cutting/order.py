"""The order in which the nodes of a graph are cut into sections, where another one than the program's cuts less."""

from __future__ import annotations

from collections.abc import Sequence

import torch.fx

from bothways import ops
from bothways.grad.cutting.moving import may_write
from bothways.runtime.nodes import set_data_


def with_data_set_late(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes, with each ``tensor.data = value`` behind what is computed of other tensors after it.

    It runs as captured, and a model that follows another one has one for each parameter: all new values are one section
    so. What shares memory with the tensor keeps its own, so nothing but the tensor itself shows when it is done.
    """
    ordered: list[torch.fx.Node] = []
    waiting: list[torch.fx.Node] = []
    changed: set[torch.fx.Node] = set()  # what waits, and the tensors that it changes
    for node in nodes:
        is_setting = node.target is set_data_
        if not (is_setting or _only_computes(node)) or not changed.isdisjoint(node.all_input_nodes):
            ordered += waiting
            waiting, changed = [], set()
        if is_setting:
            waiting.append(node)
            changed |= {node, node.all_input_nodes[0]}
        else:
            ordered.append(node)
    return ordered + waiting


def _only_computes(node: torch.fx.Node) -> bool:
    """Whether all that a node does is to compute element by element, or to read ``.data``."""
    if node.target is getattr:
        return node.args[1] == "data"
    known = ops.of_node(node)
    is_called = node.op in ("call_function", "call_method")
    return is_called and known.looks_like is not None and not (known.draws or may_write(node))
