"""Inputs that are changed where autograd looks: afterwards they have another history, which leads to the graph's node.

Such a graph is differentiated as a function that changes a copy of its own and gives it back; the node writes the
result into the input and has autograd know the input as one of its results. What a program may look at in between, such
as a value that is read after it was changed, is for the caller to cut the graph at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.grad.halves.facts import Facts
from bothways.grad.tracing.aliases import writes
from bothways.grad.tracing.joint import nodes_behind, trace_joint
from bothways.grad.tracing.sizes import Sizes
from bothways.grad.tracing.traced import Joint, NotDifferentiable, Result
from bothways.node_facts import facts_of_node, note_of_node
from bothways.symbols import hint

_CLONE = torch.ops.aten.clone.default
LITTLE = 1 << 14  # elements, whose copies take less than a part of a graph of its own
RENEWED = "an input that is changed is a view, or is hooked, or may not be changed"


class ReadAfterwards(NotDifferentiable):
    """What is computed from an input after it was changed leads through it, and the program sees both."""


class WritesByIndex(NotDifferentiable):
    """The last change of a large input is one that ATen makes where it lies: a new value would be two copies."""


class ChangedInputs(Exception):  # an answer, which ends a trace
    """Which inputs a function changes where autograd looks."""

    def __init__(self, places: tuple[int, ...]) -> None:
        super().__init__(places)
        self.places = places


class Renewal(NamedTuple):
    """An input that gets another history: its place, that of its new value among the results, whether a gradient
    depends on what it was before, and how often it is changed."""

    place: int
    number: int
    matters: bool
    changes: int


class Renewing:
    """A function of tensors, after ``skipped`` sizes, that gives new values of some inputs instead of changing them:
    behind its other outputs."""

    def __init__(self, function: Callable[..., Any], places: Sequence[int], skipped: int) -> None:
        self.function, self.places = function, tuple(places)
        self._arguments = [place + skipped for place in places]

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        own = list(values)
        for place in self._arguments:
            own[place] = values[place].clone()
        outputs = self.function(*own)
        return (*outputs, *(own[place] for place in self._arguments))


def renewed_inputs(function: Callable[..., Any], inputs: Sequence[torch.Tensor], sizes: Sizes) -> tuple[int, ...]:
    """The inputs that a function changes where autograd looks; raises where they cannot have another history."""
    skipped = len(sizes.symbols)
    has_history = [tensor.requires_grad and not tensor.is_leaf for tensor in inputs]

    def look(*values: Any) -> Any:
        numbers, own = values[:skipped], list(values[skipped:])
        own = [value.clone() if needs else value for value, needs in zip(own, has_history, strict=True)]
        before = [(torch_compat.version_of(value), value.grad_fn) for value in own]
        laid_out = [(tuple(value.shape), value.stride()) for value in own]
        outputs = function(*numbers, *own)
        changed = [place for place, value in enumerate(own) if value.grad_fn is not before[place][1]]
        if any((tuple(own[place].shape), own[place].stride()) != laid_out[place] for place in changed):
            raise NotDifferentiable("the shape of an input is changed")
        for place, value in enumerate(own):
            if has_history[place] and place not in changed and torch_compat.version_of(value) != before[place][0]:
                raise NotDifferentiable("an input that needs a gradient is changed where autograd does not look")
        _check_unread(outputs, own, changed)
        raise ChangedInputs(tuple(changed))

    try:
        trace_joint(look, inputs, True, sizes=sizes)
    except ChangedInputs as answer:
        places = answer.places
    if not places or not all(_may_be_renewed(inputs[place]) and _is_dense(inputs[place]) for place in places):
        raise NotDifferentiable(RENEWED)
    return places


def _check_unread(outputs: Sequence[Any], own: Sequence[torch.Tensor], changed: Sequence[int]) -> None:
    """Raise where another tensor that has a gradient leads through a new value."""
    new = {id(own[place]): own[place].grad_fn for place in changed}
    for value in [*(own[place] for place in changed), *outputs]:
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            continue
        base = value._base if value._is_view() else value
        behind = nodes_behind(value)
        if any(node in behind for one, node in new.items() if one != id(base)):
            raise ReadAfterwards("an input that needs a gradient is read after it was changed")


def may_be_renewed(inputs: Sequence[torch.Tensor], renewals: Sequence[Renewal]) -> bool:
    """Whether the inputs of a call that are changed may have another history."""
    for renewal in renewals:  # noqa: SIM110  # asked at every call, where a generator takes as long as the question
        if not _may_be_renewed(inputs[renewal.place]):
            return False
    return True


def _may_be_renewed(tensor: torch.Tensor) -> bool:
    """Whether none but its next readers sees that a tensor gets another history.

    A view shares its history with what it is a view of, hooks stay with the old one, and a leaf that asks for its
    gradient is refused by eager.
    """
    return not (
        tensor._is_view()
        or tensor._backward_hooks
        or tensor.is_inference()
        or (tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad))
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a copy is laid out like the tensor."""
    return torch_compat.is_strided(tensor) and torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def prepare(
    joint: Joint, facts: Facts, forward: torch.fx.Graph, places: Sequence[int], needs_grad: Sequence[bool]
) -> None:
    """Get the forward of a function ready that gives new values; raises where they cannot be, or had better not."""
    for renewal in renewals(facts, places, needs_grad):
        is_large = hint(joint.results[renewal.number].meta["val"].numel()) > LITTLE
        if is_large and ops.of(joint.results[renewal.number].target).writes_by_index:
            raise WritesByIndex("an input is changed by an index, where it lies")
    _read_originals(forward, [joint.primals[place] for place in places])


def mark_writes_by_index(graph: torch.fx.Graph) -> bool:
    """Mark the operations that write to inputs by an index, to run as captured; whether there are new ones."""
    nodes = [node for node in graph.nodes if writes_by_index(node) and not facts_of_node(node).as_captured]
    for node in nodes:
        note_of_node(node, as_captured=True, writes_by_index=True)
    return bool(nodes)


def writes_by_index(node: torch.fx.Node) -> bool:
    """Whether an operation of a captured graph writes to an input, or to a view of one, by an index."""
    operation = ops.of_node(node)
    is_method = node.op == "call_method" and operation.writes
    return is_method and operation.writes_by_index and _root(node).op == "placeholder"


def renewals(facts: Facts, places: Sequence[int], needs_grad: Sequence[bool]) -> list[Renewal]:
    """The renewals of a function that gives new values behind its outputs."""
    renewed = []
    for place, output in zip(places, facts.outputs[len(facts.outputs) - len(places) :], strict=True):
        if not isinstance(output, Result) or not facts.differentiable[output.index]:
            raise NotDifferentiable("the new value of an input is not one that the graph computes")
        if needs_grad[place] and place in facts.strange_inputs:
            raise NotDifferentiable("an input that needs a gradient gets a value that does not lead to it")
        changes = facts.versions[output.index]
        renewed.append(Renewal(place, output.index, place not in facts.unread_inputs, changes))
    return renewed


def _read_originals(graph: torch.fx.Graph, originals: Sequence[torch.fx.Node]) -> None:
    """Have a forward read some inputs in the place of copies that no other code gets: it writes to none of them."""
    names = {original.name for original in originals}
    (returned,) = (node for node in graph.nodes if node.op == "output")
    for node in list(graph.nodes):
        if node.target is _CLONE and node.args[0].name in names and returned not in node.users:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def mark_last_writes(graph: torch.fx.Graph) -> bool:
    """Mark the operations after which a tensor is read but not changed any more; whether there are new ones."""
    last: dict[torch.fx.Node, torch.fx.Node] = {}
    read: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if writes(node):
            last[_root(node)] = node
        for argument in node.all_input_nodes:
            root = _root(argument)
            if last.get(root) not in (None, node) and not ops.of_node(node).is_view:
                read[root] = last[root]
    last_writes = [node for root, node in read.items() if last[root] is node and not facts_of_node(node).is_last_write]
    for node in last_writes:
        note_of_node(node, is_last_write=True)
    return bool(last_writes)


def _root(node: torch.fx.Node) -> torch.fx.Node:
    while node.args and isinstance(node.args[0], torch.fx.Node) and (writes(node) or ops.of_node(node).is_view):
        node = node.args[0]
    return node
