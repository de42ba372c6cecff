"""What the operations of a captured graph change in place, as far as names tell."""

from __future__ import annotations

from collections.abc import Iterable

import torch.fx
import torch.nn.functional as F

OPERATORS = frozenset({"and_", "or_"})  # whose names only end as if they changed something
IN_PLACE_OPERATORS = frozenset(
    "setitem iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ior ixor setattr".split()
)


def changes_something(node: torch.fx.Node) -> bool:
    name = _name(node)
    in_place = name.endswith("_") and not name.endswith("__") and name not in OPERATORS
    return node.op not in ("placeholder", "output") and (
        in_place
        or "in_place" in node.meta
        or name in IN_PLACE_OPERATORS
        or "out" in node.kwargs
        or bool(node.kwargs.get("inplace"))
        or getattr(node.target, "has_effects", False)
        or bool(statistics_of(node))
    )


def changes_only_its_own(node: torch.fx.Node) -> bool:
    """Whether what a node changes was made in the graph, from nothing that came into it."""
    if getattr(node.target, "has_effects", False) or "out" in node.kwargs or statistics_of(node):
        return False
    node = root_of(node)
    return not node.all_input_nodes and node.op == "call_function"


def statistics_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The running statistics that a normalisation writes to, which leaves their versions as they are."""
    if not _name(node).endswith(("batch_norm", "instance_norm")):
        return []
    if node.target not in (F.batch_norm, F.instance_norm):
        return node.all_input_nodes
    by_name = [node.kwargs.get("running_mean"), node.kwargs.get("running_var")]
    return [value for value in [*node.args[1:3], *by_name] if isinstance(value, torch.fx.Node)]


def changed_roots(nodes: Iterable[torch.fx.Node]) -> tuple[set[torch.fx.Node], set[torch.fx.Node]]:
    """What operations may write to, or what that is a view of; first what they count, then running statistics."""
    changed: set[torch.fx.Node] = set()
    statistics: set[torch.fx.Node] = set()
    for node in filter(changes_something, nodes):
        written = statistics_of(node)
        statistics.update(map(root_of, written))
        changed.update(map(root_of, () if written else node.all_input_nodes))
    return changed, statistics


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, if it is one of anything."""
    while node.args and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
