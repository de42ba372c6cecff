"""Operations of a graph that ATen runs as a copy and a change of it, in place where nobody reads the original again.

Tracing makes each change a new value. ATen copies the old one for that, which eager's formulas, working in place on
what they have just made, do not. What came into the graph, leaves it, or is read later is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx

from bothways import ops, torch_compat

Node = torch.fx.Node
aten = torch.ops.aten

# What copies its first argument and changes the copy -> what changes the argument itself.
IN_PLACE: dict[Any, Any] = {
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.masked_fill.Tensor: aten.masked_fill_.Tensor,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.put.default: aten.put_.default,
}
# What makes a tensor of nothing.
MAKERS = frozenset({
    aten.zeros.default, aten.new_zeros.default, aten.ones.default, aten.new_ones.default, aten.full.default,
    aten.new_full.default, aten.clone.default,
})  # fmt: skip


def change_in_place(graph: torch.fx.Graph) -> None:
    """Change the graph: operations of the table that may write to what they are given do."""
    wanted = [node for node in graph.nodes if node.op == "call_function" and node.target in IN_PLACE]
    if not wanted:
        return
    places = {node: place for place, node in enumerate(graph.nodes)}
    sharing: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for memory in _memories(node):
            sharing.setdefault(memory, []).append(node)
    for node in wanted:
        if _is_free(node, places, sharing):
            node.target = IN_PLACE[node.target]
            given: Any = node.args[0]
            together = sharing[_memory(given.meta["val"])]  # from now on the result is that memory, too
            together += sharing[_memory(node.meta["val"])]
            sharing[_memory(node.meta["val"])] = together


def _is_free(node: Node, places: dict[Node, int], sharing: dict[int, list[Node]]) -> bool:
    """Whether the first argument is a tensor of the graph's own that lies as the result does, and nobody else reads it
    or what shares its memory from here on."""
    given, *others = node.args
    if not isinstance(given, Node) or not _makes_its_result(given) or _inside(given, others):
        return False
    old, new = given.meta.get("val"), node.meta.get("val")
    if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and _lie_alike(old, new)):
        return False
    owners = sharing.get(_memory(old), [])
    if any(owner.op != "call_function" for owner in owners):
        return False
    readers = (user for owner in owners for user in owner.users if user is not node)
    return all(user.op != "output" and places[user] < places[node] for user in readers)


def _makes_its_result(node: Node) -> bool:
    """Whether what a node gives is certainly memory of its own."""
    if node.op != "call_function":
        return False
    return node.target in MAKERS or node.target in IN_PLACE.values() or ops.of(node.target).gives is ops.Gives.FRESH


def _inside(node: Node, arguments: Iterable[Any]) -> bool:
    """Whether a node, or what shares its memory, is among the arguments."""
    memory = _memory(node.meta["val"]) if isinstance(node.meta.get("val"), torch.Tensor) else None
    return any(memory in _memories(argument) for argument in _nodes(arguments))


def _nodes(arguments: Iterable[Any]) -> Iterator[Node]:
    for argument in arguments:
        if isinstance(argument, Node):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _nodes(argument)


def _lie_alike(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether the same elements lie in the same places, none of them in two."""
    if torch_compat.has_symbolic_sizes(old) or torch_compat.has_symbolic_sizes(new):
        return False
    facts = [(value.dtype, value.device, tuple(value.shape), value.stride(), value.layout) for value in (old, new)]
    pairs = zip(old.stride(), old.shape, strict=True)
    return facts[0] == facts[1] and old.layout is torch.strided and all(step or size < 2 for step, size in pairs)


def _memories(node: Node) -> list[int]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [
        _memory(item) for item in values if isinstance(item, torch.Tensor) and item.layout is torch.strided
    ]


def _memory(tensor: torch.Tensor) -> int:
    return torch_compat.storage_identity(tensor)
