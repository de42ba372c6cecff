"""Whether the user's code could tell that images lie otherwise than captured: by who shares memory with whom.

``reshape`` gives a view or a copy by how its tensor lies. That shows where one of the two is written to afterwards, or
where both leave the graph.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch.fx

from bothways import ops
from bothways.ops import Gives


def sharing_depends_on_layout(graph: torch.fx.Graph) -> bool:
    """Whether something is written to what may be a view or a copy, or to what it is of, or both are results."""
    either: set[torch.fx.Node] = set()  # what was viewed or copied so far
    for node in graph.nodes:
        if either and any(_memory(written) in either for written in _written(node)):
            return True
        if ops.of_node(node).gives is Gives.BY_LAYOUT:
            either.add(_memory(node))
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    counts = Counter(map(_memory, output.all_input_nodes))
    return any(counts[memory] > 1 for memory in either)


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    if node.op in ("placeholder", "output"):
        return []
    out = node.kwargs.get("out")
    outs = out if isinstance(out, (tuple, list)) else [out]  # an operation with several results writes to several
    return [value for value in (_first(node) if writes(node) else None, *outs) if isinstance(value, torch.fx.Node)]


def writes(node: torch.fx.Node) -> bool:
    place = _place_of_inplace(node.target) if node.op == "call_function" else None
    by_position = place is not None and place < len(node.args) and bool(node.args[place])
    return ops.of_node(node).writes or by_position or bool(node.kwargs.get("inplace"))


@functools.cache
def _place_of_inplace(function: Any) -> int | None:
    """Which argument of a function says that it works in place: F.dropout has it as its fourth."""
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    return names.index("inplace") if "inplace" in names else None


def _memory(node: torch.fx.Node) -> torch.fx.Node:
    """The node that made the memory a node may be a view of."""
    while ops.of_node(node).is_view or writes(node):
        first = _first(node)
        if first is None:
            break
        node = first
    return node


def _first(node: torch.fx.Node) -> torch.fx.Node | None:
    candidates = [*node.args[:1], node.kwargs.get("input")]
    return next((value for value in candidates if isinstance(value, torch.fx.Node)), None)
