"""What autograd knows of a captured graph: the graph run on thin tensors, with PyTorch's own autograd above them.

A backward in the middle of captured code is asked of it first: which leaves it comes to, with a gradient or without
one, in which order, how gradients are laid out, what it frees, and whether PyTorch would refuse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.shapes.fakes import MODE, Fake, NonLeaf, torch_fake, with_history
from bothways.capture.shapes.meetings import RunsTwice, edge_of, meetings
from bothways.capture.shapes.outlines import come_through
from bothways.errors import Unsupported
from bothways.fake import NeedsData, NotThin, ThinTensor, thin_outline
from bothways.grad.tracing.joint import nodes_behind
from bothways.grad.tracing.results import has_known_history
from bothways.node_facts import facts_of_call
from bothways.runtime.gradients import apart, gradients
from bothways.runtime.hooks import lead_through
from bothways.runtime.nodes import CHECKS, Checkpointed
from bothways.runtime.torch_state import TorchState, restore, torch_state
from bothways.runtime.warning_nodes import Warns

ByNode = Mapping[torch.fx.Node, Any]


class HistoryUnknown(Exception):
    """The history cannot be known before the graph runs."""


class Backward(NamedTuple):
    """A backward: from which nodes, with which gradients of theirs, and what is kept for another one."""

    roots: Sequence[torch.fx.Node]
    tangents: Sequence[torch.fx.Node]
    retain_graph: bool
    create_graph: bool


class AutogradHistory:
    """The values of a graph's nodes as thin tensors that autograd has followed.

    In one that is ``in_parts`` a tensor that is hooked begins a history of its own, as it does in the graph; in others
    the history is the one that eager has.
    """

    def __init__(self, graph: torch.fx.Graph, state: TorchState, in_parts: bool = False, mode: Any = MODE) -> None:
        self._graph, self._state, self._in_parts = graph, state, in_parts
        # Another mode is one of PyTorch's fake tensors. Histories of one graph share it: gradients that one has found
        # are given to the others.
        self._mode, self._is_thin = mode, mode is MODE
        self._values: dict[torch.fx.Node, Any] = {}
        self._last: torch.fx.Node | None = None
        self._leaves: dict[int, torch.fx.Node] = {}
        self._versions: dict[torch.fx.Node, int | None] = {}
        self._freed: set[Any] = set()  # autograd nodes whose saved tensors a backward has let go of

    def follow(self, tensors: ByNode, numbers: ByNode, left: Mapping[torch.fx.Node, None]) -> None:
        """Run what was recorded since the last time.

        ``tensors`` are those that the inputs stand for, ``numbers`` what nodes give that are numbers. What is ``left``
        behind by a checkpoint has a copy that runs; it would come before that to what autocast keeps of its casts.
        """
        values = self._values
        if not self._is_thin and numbers:
            raise HistoryUnknown("an operation that cannot be followed for all sizes")
        values.update((node, number) for node, number in numbers.items() if node not in values)
        for node, tensor in tensors.items():
            if node not in values:
                values[node] = self._input(node, tensor)
        pending = self._graph.nodes if self._last is None else _after(self._last)
        with self._in_its_state():
            for node in pending:
                is_left = node in left and node.users.keys() <= left.keys()
                if node not in values and node.op != "output" and not is_left:
                    values[node] = None if node.op == "placeholder" else self._run(node)
                self._last = node

    @contextmanager
    def _in_its_state(self) -> Iterator[None]:
        with torch_compat.without_saved_tensor_hooks():
            before = torch_state()
            restore(replace(self._state, saved_tensors_hooks=before.saved_tensors_hooks))
            try:
                yield
                self._state = torch_state()
            finally:
                restore(before)

    def _run(self, node: torch.fx.Node) -> Any:
        if node.target in CHECKS:
            return None
        args: Any
        kwargs: Any
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._value_of)
        if node.target is apart and not self._in_parts:
            return args[0]
        target: Any = node.target.target if isinstance(node.target, Warns) else node.target
        known = facts_of_call(target)
        if known.region is not None:
            raise HistoryUnknown(f"{target.__name__} is active, which sees what autograd saves")
        if known.opaque and target is not lead_through and not isinstance(target, Checkpointed):
            return self._unfollowed(node, args, f"{target!r} runs as Python when the graph does")
        saving: set[Any] = set()
        if target is gradients and not args[3]:  # a history that is made anew runs the backwards so far
            saving = set(filter(torch_compat.has_saved_tensors, _nodes_between(args[0], args[1])))
        try:
            with self._mode:
                function = getattr(torch.Tensor, target) if isinstance(target, str) else target
                value = come_through(function, args)(*args, **kwargs)
        except NotThin:
            raise
        except (NeedsData, Unsupported) as error:
            return self._unfollowed(node, args, f"{node.target} cannot be followed without data: {error}")
        except RuntimeError as error:
            if torch_compat.wants_numbers(error):
                raise NotThin(f"{node.target} cannot be followed for all sizes") from error
            raise
        self._freed |= saving
        if isinstance(value, torch.Tensor) and value.requires_grad and _may_be_used(value):
            self._versions[node] = torch_compat.version_of(value)
            if value.is_leaf:
                self._leaves.setdefault(id(value), node)
        return value

    def _value_of(self, node: torch.fx.Node) -> Any:
        """What a node gives to another; inputs that are no tensors may have come when others were followed already."""
        if node.op == "placeholder":
            return self._values.get(node)
        if node not in self._values:  # it was left behind, and something reads it now
            self._values[node] = self._run(node)
        return self._values[node]

    def _input(self, node: torch.fx.Node, tensor: torch.Tensor) -> torch.Tensor:
        shown = node.meta["example_value"]
        outline = with_history(thin_outline(tuple(shown.shape), shown.stride(), shown.dtype, shown.device), tensor)
        thin = outline if self._is_thin else torch_fake(self._mode, Fake(outline, outline.device))
        if thin.requires_grad and thin.is_leaf:
            self._leaves[id(thin)] = node
        return thin

    def _unfollowed(self, node: torch.fx.Node, args: Any, reason: str) -> Any:
        """What a node gives that needs data; where gradients go through it, nothing can be told."""
        outline = node.meta.get("example_value")
        tensors = [arg for arg in torch_compat.tree_flatten(args)[0] if isinstance(arg, torch.Tensor)]
        if outline is None or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            raise HistoryUnknown(reason)
        return outline.detach() if self._is_thin else torch_fake(self._mode, Fake(outline, outline.device))

    def begin_part(self, node: torch.fx.Node) -> None:
        """A node was put into the graph that begins a history of its own, where nothing was computed from it yet."""
        if not self._in_parts:
            self._values[node] = self._values[node.args[0]]  # type: ignore[index]

    def give(self, node: torch.fx.Node, value: Any) -> None:
        """Say what a node gives that was just recorded."""
        self._values[node] = value

    # Asking.

    def of(self, node: torch.fx.Node) -> Any:
        return self._values[node]

    def knows(self, node: torch.fx.Node) -> bool:
        return node in self._values

    def is_unchanged(self, node: torch.fx.Node) -> bool:
        """Whether a tensor is as the node computed it."""
        return torch_compat.version_of(self._values[node]) == self._versions[node]

    def memories(self) -> set[int]:
        """Where the graph's tensors lie."""
        return {memory_of(value) for value in self._values.values() if isinstance(value, torch.Tensor)}

    def behind(self, nodes: Iterable[torch.fx.Node]) -> set[Any]:
        """The autograd nodes that a backward from these tensors may go through."""
        return nodes_behind(*(self._values[node] for node in nodes))

    def comes_from_outside(self, steps: Iterable[Any]) -> bool:
        """Whether a backward through autograd nodes leaves the captured graph."""
        return any(isinstance(step, NonLeaf._backward_cls) for step in steps)

    def leaves(self, roots: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
        """The leaves that a backward comes to, as the nodes that give them."""
        roots = list(roots)
        variables = [getattr(step, "variable", None) for step in self.behind(roots)]
        # One that does not ask for its gradient any more gets none.
        asking = [variable for variable in variables if variable is not None and variable.requires_grad]
        reached = {self._leaves[id(variable)] for variable in asking if id(variable) in self._leaves}
        reached.update(self._leaves[id(self._values[node])] for node in roots if id(self._values[node]) in self._leaves)
        return [node for node in self._graph.nodes if node in reached]

    def inputs_behind(self, node: torch.fx.Node) -> set[torch.fx.Node]:
        """The inputs of the graph that a backward from a tensor comes to, whether they are leaves or not."""
        outside = {step for step in self.behind([node]) if isinstance(step, NonLeaf._backward_cls)}
        inputs = [other for other in self._graph.nodes if other.op == "placeholder"]
        computed = {other for other in inputs if getattr(self._values.get(other), "grad_fn", None) in outside}
        return computed | set(self.leaves([node])).intersection(inputs)

    def leads_to(self, node: torch.fx.Node, others: Iterable[torch.fx.Node]) -> bool:
        """Whether a backward from a tensor comes to one of others."""
        behind = self.behind([node]) - {self._values[node].grad_fn}
        variables = {id(getattr(step, "variable", None)) for step in behind}
        return any(self._values[other].grad_fn in behind or id(self._values[other]) in variables for other in others)

    def meetings(
        self, roots: Iterable[torch.fx.Node], stops: Iterable[torch.fx.Node], together: Iterable[torch.fx.Node]
    ) -> list[torch.fx.Node]:
        """The tensors at which a backward has to stop as well when it stops at some; raises where that cannot be."""
        try:
            wanted = meetings(*([self._values[node] for node in nodes] for nodes in (roots, stops, together)))
        except RunsTwice as error:
            raise HistoryUnknown(str(error)) from None
        if not wanted:
            return []
        there = {edge_of(self._values[node]): node for node in self._versions if self.is_unchanged(node)}
        if not there.keys() >= set(wanted):
            raise HistoryUnknown("the ways around a tensor that is hooked meet inside of an operation")
        return [there[edge] for edge in wanted]

    def is_freed(self, roots: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node] | None = None) -> bool:
        """Whether a backward through tensors, to ``inputs`` or to all leaves, needs what another one has let go of."""
        values = [self._values[node] for node in roots]
        begun = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
        begun = [value for value in begun if has_known_history(value)]  # from others, no backward begins
        if not self._freed or not begun:
            return False
        wanted = None if inputs is None else [self._values[node] for node in inputs]
        return not self._freed.isdisjoint(nodes_behind(*begun) if wanted is None else _nodes_between(begun, wanted))

    def run(
        self,
        backward: Backward,
        inputs: Sequence[torch.fx.Node],
        watched: Iterable[torch.fx.Node] = (),
        together: Mapping[torch.fx.Node, torch.fx.Node] | None = None,
    ) -> tuple[tuple[Any, ...], list[torch.fx.Node]]:
        """Run a backward: the gradients of ``inputs``, and the watched tensors in the order in which theirs came.

        ``together`` are nodes with several results, each with one of these: they are noted when all theirs have come.
        """
        roots, tangents, retain_graph, create_graph = backward
        order: list[torch.fx.Node] = []
        handles = [self._values[node].register_hook(partial(_note, order, node)) for node in watched]
        for node, result in (together or {}).items():
            handles.append(self._values[result].grad_fn.register_prehook(partial(_note, order, node)))
        begun, tangent_values, wanted = ([self._values[node] for node in nodes] for nodes in (roots, tangents, inputs))
        used = set() if retain_graph else _nodes_between(begun, wanted)
        saving = set(filter(torch_compat.has_saved_tensors, used))
        try:
            with self._in_its_state(), self._mode:
                results = torch_compat.run_backward(begun, tangent_values, wanted, retain_graph, create_graph)
        finally:
            for handle in handles:
                handle.remove()
        self._freed |= saving
        return results, order


def _nodes_between(roots: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> set[Any]:
    """The autograd nodes that a backward from some tensors to others goes through, and lets go of: those of which a way
    leads on to an input. What lies behind the inputs is kept, unless a way to another input leads through it."""
    behind = nodes_behind(*roots)
    ends = {tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None}
    leaves = {id(tensor) for tensor in inputs if tensor.grad_fn is None}
    ends |= {node for node in behind if id(getattr(node, "variable", None)) in leaves}
    before: dict[Any, list[Any]] = {}
    for node in behind:
        for following, _ in node.next_functions:
            before.setdefault(following, []).append(node)
    between: set[Any] = set()
    pending = [node for end in ends for node in before.get(end, ())]
    while pending:
        node = pending.pop()
        if node not in between:
            between.add(node)
            pending.extend(before.get(node, ()))
    return between


def _may_be_used(tensor: torch.Tensor) -> bool:
    """Whether autograd tells anything of a tensor: not of a view from under ``no_grad`` that was changed there."""
    try:
        return tensor.is_leaf or tensor.grad_fn is not None
    except RuntimeError:
        return False


def memory_of(tensor: torch.Tensor) -> int:
    """What tells the memory of a tensor from others', as long as the tensor lives."""
    return id(tensor.memory) if type(tensor) is ThinTensor else torch_compat.storage_of(tensor)


def _after(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    while node.next.op != "root":
        node = node.next
        yield node


def _note(order: list[torch.fx.Node], node: torch.fx.Node, gradient: Any) -> None:
    order.append(node)
