"""What autograd knows of a captured graph: the graph run on thin tensors, with PyTorch's own autograd above them.

A backward in the middle of captured code is asked of it first: which leaves it comes to, with a gradient or without
one, in which order, how gradients are laid out, what it frees, and whether PyTorch would refuse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.shapes.fakes import MODE, NonLeaf, with_history
from bothways.errors import Unsupported
from bothways.fake import NeedsData, NotThin, thin_outline
from bothways.node_facts import facts_of_call
from bothways.runtime.nodes import Checkpointed, require_holds, require_true
from bothways.runtime.torch_state import TorchState, restore, torch_state
from bothways.runtime.warning_nodes import Warns

# What a graph checks while it runs; nothing is differentiated there.
CHECKS = frozenset({require_true, require_holds})


class Untold(Exception):
    """The history cannot be known before the graph runs."""


class AutogradHistory:
    """The values of a graph's nodes as thin tensors that autograd has followed."""

    def __init__(self, graph: torch.fx.Graph, state: TorchState) -> None:
        self._graph, self._state = graph, state
        self._values: dict[torch.fx.Node, Any] = {}
        self._leaves: dict[int, torch.fx.Node] = {}
        self._freed: set[Any] = set()  # autograd nodes whose saved tensors a backward has let go of

    def follow(self, given: Mapping[torch.fx.Node, Any], numbers: Mapping[torch.fx.Node, Any]) -> None:
        """Run what was recorded since the last time.

        ``given`` are the tensors that the inputs stand for, ``numbers`` what nodes give that find numbers.
        """
        with self._in_its_state():
            for node in self._graph.nodes:
                if node not in self._values and node.op != "output":
                    self._values[node] = self._run(node, given, numbers)

    @contextmanager
    def _in_its_state(self) -> Iterator[None]:
        before = torch_state()
        restore(self._state)
        try:
            yield
            self._state = torch_state()
        finally:
            restore(before)

    def _run(
        self, node: torch.fx.Node, given: Mapping[torch.fx.Node, Any], numbers: Mapping[torch.fx.Node, Any]
    ) -> Any:
        if node in numbers:
            return numbers[node]
        if node.op == "placeholder":
            tensor = given.get(node)
            return None if tensor is None else self._input(node, tensor)
        if node.target in CHECKS:
            return None
        target: Any = node.target.target if isinstance(node.target, Warns) else node.target
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        known = facts_of_call(target)
        if known.opaque and not isinstance(target, Checkpointed):
            return self._unfollowed(node, args, f"{target!r} runs as Python when the graph does")
        try:
            with MODE:
                function = getattr(torch.Tensor, target) if isinstance(target, str) else target
                value = function(*args, **kwargs)
        except (NeedsData, NotThin, Unsupported) as error:
            return self._unfollowed(node, args, f"{node.target} cannot be followed without data: {error}")
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
            self._leaves.setdefault(id(value), node)
        return value

    def _input(self, node: torch.fx.Node, tensor: torch.Tensor) -> torch.Tensor:
        shown = node.meta["example_value"]
        thin = with_history(thin_outline(tuple(shown.shape), shown.stride(), shown.dtype, shown.device), tensor)
        if thin.requires_grad and thin.is_leaf:
            self._leaves[id(thin)] = node
        return thin

    def _unfollowed(self, node: torch.fx.Node, args: Any, reason: str) -> Any:
        """What a node gives that needs data; where gradients go through it, nothing can be told."""
        outline = node.meta.get("example_value")
        tensors = [arg for arg in torch_compat.tree_flatten(args)[0] if isinstance(arg, torch.Tensor)]
        if outline is None or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            raise Untold(reason)
        return outline.detach()

    # Asking.

    def of(self, node: torch.fx.Node) -> Any:
        return self._values[node]

    def behind(self, nodes: Iterable[torch.fx.Node]) -> set[Any]:
        """The autograd nodes that a backward from these tensors may go through."""
        pending = [self._values[node].grad_fn for node in nodes]
        seen: set[Any] = set()
        while pending:
            step = pending.pop()
            if step is not None and step not in seen:
                seen.add(step)
                pending.extend(following for following, _ in step.next_functions)
        return seen

    def comes_from_outside(self, steps: Iterable[Any]) -> bool:
        """Whether a backward through autograd nodes leaves the captured graph."""
        return any(isinstance(step, NonLeaf._backward_cls) for step in steps)

    def leaves(self, roots: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
        """The leaves that a backward comes to, as the nodes that give them."""
        variables = [getattr(step, "variable", None) for step in self.behind(roots)]
        found = {self._leaves[id(variable)] for variable in variables if id(variable) in self._leaves}
        found.update(node for node in roots if id(self._values[node]) in self._leaves)
        return [node for node in self._graph.nodes if node in found]

    def is_freed(self, node: torch.fx.Node) -> bool:
        """Whether a backward through a tensor needs what another one has let go of."""
        value = self._values[node]
        return bool(self._freed) and value.requires_grad and not self._freed.isdisjoint(self.behind([node]))

    def backward(
        self,
        roots: Sequence[torch.fx.Node],
        tangents: Sequence[torch.fx.Node],
        inputs: Sequence[torch.fx.Node],
        retain_graph: bool,
        create_graph: bool,
    ) -> tuple[torch.Tensor | None, ...]:
        """Run a backward; what PyTorch refuses raises RuntimeError."""
        saving = set() if retain_graph else set(filter(torch_compat.has_saved_tensors, self.behind(roots)))
        values = self._values
        with self._in_its_state(), MODE:
            found = torch_compat.run_backward(
                [values[node] for node in roots], [values[node] for node in tangents],
                [values[node] for node in inputs], retain_graph, create_graph,
            )  # fmt: skip
        self._freed |= saving
        return found

    def give(self, node: torch.fx.Node, value: Any) -> None:
        """Say what a node gives that was just recorded."""
        self._values[node] = value


