"""Operations of a graph that ATen runs as a copy and a change of it, in place where no later node reads the original.

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


def change_in_place(graph: torch.fx.Graph) -> None:
    """Change the graph: operations that copy their first argument and may as well write to it do."""
    wanted = {node: in_place(node.target) for node in graph.nodes if node.op == "call_function"}
    if not any(wanted.values()):
        return
    places = {node: place for place, node in enumerate(graph.nodes)}
    sharing: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for memory in _memories(node):
            sharing.setdefault(memory, []).append(node)
    for node, change in wanted.items():
        if change is not None and _is_free(node, places, sharing):
            node.target = change
            operand: Any = node.args[0]
            together = sharing[_memory(operand.meta["val"])]  # from now on the result is that memory, too
            together += sharing[_memory(node.meta["val"])]
            sharing[_memory(node.meta["val"])] = together


def in_place(target: Any) -> Any:
    """The operation that changes its first argument, for one that copies it first; None for others."""
    known = ops.of(target)
    if not known.copies_first or known.writes or not torch_compat.is_plain_overload(target):
        return None
    return torch_compat.form_in_place(target)


def _is_free(node: Node, places: dict[Node, int], sharing: dict[int, list[Node]]) -> bool:
    """Whether the first argument is a tensor of the graph's own that lies as the result does, and no other node reads
    it or what shares its memory from here on."""
    operand, *others = node.args
    if not isinstance(operand, Node) or not _makes_its_result(operand):
        return False
    old, new = operand.meta.get("val"), node.meta.get("val")
    if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and _lie_alike(old, new)):
        return False
    owners = sharing[_memory(old)]
    if any(owner.op != "call_function" for owner in owners):
        return False
    if any(argument in owners for argument in _nodes([others, *node.kwargs.values()])):
        return False
    readers = (user for owner in owners for user in owner.users if user is not node)
    return all(user.op != "output" and places[user] < places[node] for user in readers)


def _makes_its_result(node: Node) -> bool:
    """Whether what a node gives is certainly memory of the graph's own."""
    if node.op != "call_function":
        return False
    known = ops.of(node.target)
    if known.copies_first:  # or changes, by now, what such a node gave
        return True
    return known.gives is ops.Gives.FRESH or (known.gives is ops.Gives.UNKNOWN and known.moves and not known.aliases)


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
