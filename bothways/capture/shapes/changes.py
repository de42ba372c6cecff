"""What the operations of a captured graph change in place, as far as their records tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.fx
import torch.nn.functional as F

from bothways import ops
from bothways.fake.lists import AT_ONCE
from bothways.node_facts import facts_of_call, facts_of_node
from bothways.ops import Gives
from bothways.runtime.nodes import set_data_


def changes_something(node: torch.fx.Node) -> bool:
    return node.op not in ("placeholder", "output") and (
        ops.of_node(node).writes
        or facts_of_node(node).is_in_place
        or "out" in node.kwargs
        or bool(node.kwargs.get("inplace"))
        or facts_of_call(node.target).has_effects
        or bool(statistics_of(node))
    )


def changes_only_its_own(node: torch.fx.Node) -> bool:
    """Whether what a node changes was made in the graph, from nothing that came into it."""
    if facts_of_call(node.target).has_effects or "out" in node.kwargs or statistics_of(node):
        return False
    node = root_of(node)
    return not node.all_input_nodes and node.op == "call_function"


def acts_outside(node: torch.fx.Node) -> bool:
    """Whether a node does what a second run of the graph would do once more; not where it gives other data to a tensor
    that each run makes."""
    if not facts_of_call(node.target).has_effects:
        return False
    return node.target is not set_data_ or not _is_fresh(root_of(node.args[0]))  # type: ignore[arg-type]


def changes_inputs(node: torch.fx.Node) -> bool:
    return changes_something(node) and not changes_only_its_own(node)


def statistics_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The running statistics that a normalisation writes to, which leaves their versions as they are."""
    if not ops.of_node(node).keeps_statistics:
        return []
    if node.target not in (F.batch_norm, F.instance_norm):
        return node.all_input_nodes
    by_name = [node.kwargs.get("running_mean"), node.kwargs.get("running_var")]
    return [value for value in [*node.args[1:3], *by_name] if isinstance(value, torch.fx.Node)]


class Written(NamedTuple):
    """What the operations of a graph may write to, or what that is a view of."""

    counted: set[torch.fx.Node]  # by its version
    as_data: set[torch.fx.Node]  # as ``.data``, which has a version of its own; or by what forgets to count
    statistics: set[torch.fx.Node]  # which are not counted at all


def written_roots(nodes: Iterable[torch.fx.Node]) -> Written:
    roots = Written(set(), set(), set())
    for node in filter(changes_something, nodes):
        statistics = statistics_of(node)
        roots.statistics.update(map(root_of, statistics))
        for changed in () if statistics else _targets(node):
            *steps, root = path_of(changed)
            (roots.as_data if any(map(_is_data, steps)) else roots.counted).add(root)
        roots.as_data.update(map(root_of, _uncounted(node)))
    return roots


def _targets(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What an operation may write to: methods of tensors and operators write to what is on their left."""
    first = node.args[0] if node.args else None
    on_its_left = node.op == "call_method" or ops.of_node(node).writes_left
    return [first] if on_its_left and isinstance(first, torch.fx.Node) else node.all_input_nodes


def _uncounted(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What an operation on lists writes to without counting it, on a GPU."""
    if not ops.of_node(node).uncounted_at_once or not isinstance(node.args[0], (list, tuple)):
        return []
    written = [one for one in node.args[0] if isinstance(one, torch.fx.Node)]
    examples = [one.meta.get("example_value") for one in written]
    return [
        one
        for one, example in zip(written, examples, strict=True)
        if not isinstance(example, torch.Tensor) or example.device.type in AT_ONCE
    ]


def _is_data(node: torch.fx.Node) -> bool:
    return node.target is getattr and node.args[1] == "data"


def may_fail_in_place(node: torch.fx.Node) -> bool:
    """Whether an operation that takes any data may refuse to write where it should.

    That is over other elements of its operands, to elements that share their memory, or to one view of several,
    which an input may be.
    """
    targets: list[torch.fx.Node] = []
    read: list[torch.fx.Node] = []
    torch.fx.map_arg(node.args[:1], targets.append)
    torch.fx.map_arg((node.args[1:], node.kwargs), read.append)
    paths = [list(path_of(target)) for target in targets]
    memories = {_memory(path[-1]) for path in paths}
    return (
        any(_memory(root_of(other)) in memories and other not in targets for other in read)
        or any(ops.of_node(step).takes_apart or facts_of_node(step).is_view for path in paths for step in path)
        or not all(map(_has_room_for_each_element, targets))
    )


def _has_room_for_each_element(node: torch.fx.Node) -> bool:
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or example.layout is not torch.strided:
        return False
    return all(stride != 0 or size <= 1 for size, stride in zip(example.shape, example.stride(), strict=True))


def _memory(root: torch.fx.Node) -> object:
    """What two inputs have in common that share their memory."""
    memory = facts_of_node(root).memory
    return root if memory is None else memory


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, if it is one of anything."""
    *_, root = path_of(node)
    return root


def _is_fresh(node: torch.fx.Node) -> bool:
    known = isinstance(node.target, str) or getattr(node.target, "__module__", None) in (None, "torch", "_operator")
    return known and ops.of_node(node).gives is Gives.FRESH and "out" not in node.kwargs


def path_of(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A node and what it may be a view of, the first of all last."""
    yield node
    while not _is_fresh(node) and node.args and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
        yield node
