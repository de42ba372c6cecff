"""What autograd knows of a graph under construction, for backward calls that are captured into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.fx

from bothways.capture.shapes.autograd_history import AutogradHistory, HistoryUnknown
from bothways.capture.shapes.fakes import MODE
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.fake import NotThin, fake_tensor_mode
from bothways.runtime.gradients import apart, gradients
from bothways.runtime.torch_state import torch_state

if TYPE_CHECKING:
    from bothways.capture.recording.graph import GraphBuilder


class GraphAutograd:
    """The leaves that a graph makes, and its history once a backward has asked for it.

    A tensor that is computed inside and hooked there is where a backward stops, calls the hooks and goes on: in the
    graph a part of the history ends before it and another begins (``apart``).
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._state = torch_state()  # which the graph begins with
        self._history: AutogradHistory | None = None
        self._in_parts: AutogradHistory | None = None
        self._mode: Any = MODE  # that of thin tensors, or of PyTorch's fake ones
        self._leaves: dict[torch.fx.Node, TensorValue] = {}
        self.parts: dict[torch.fx.Node, torch.fx.Node] = {}  # what begins a part -> what computes the tensor
        self.checkpointed: dict[torch.fx.Node, None] = {}  # what a checkpoint was captured as, and runs by itself

    def release(self) -> None:
        """Let go of tensors."""
        self._history = self._in_parts = None
        self._leaves = {}

    def meet(self, node: torch.fx.Node, value: TensorValue) -> None:
        """An operation gave a tensor; it may be a leaf that captured code has made."""
        if value.fake.is_new_leaf:
            self._leaves[node] = value

    def history(self) -> AutogradHistory:
        """What autograd knows of the graph so far."""
        if self._history is None:
            self._history = AutogradHistory(self._builder.graph, self._state, mode=self._mode)
        try:
            return self._followed(self._history)
        except NotThin as error:
            if not self.turn_to_fakes():
                raise HistoryUnknown(str(error)) from error
            return self.history()

    def turn_to_fakes(self) -> bool:
        """Ask PyTorch's fake tensors from now on, who may tell what thin ones cannot, and take longer; False if it is
        them that were asked."""
        if self._mode is not MODE:
            return False
        self._mode, self._history, self._in_parts = fake_tensor_mode(), None, None
        return True

    def history_in_parts(self) -> AutogradHistory:
        """The same with the histories of parts apart."""
        if not self.parts:
            return self.history()
        if self._in_parts is None:
            self._in_parts = AutogradHistory(self._builder.graph, self._state, in_parts=True, mode=self._mode)
        return self._followed(self._in_parts)

    def _followed(self, history: AutogradHistory) -> AutogradHistory:
        builder = self._builder
        objects = {value.placeholder: value.obj for value in builder.inputs}
        history.follow(objects, builder.numbers(), self.checkpointed)
        return history

    def begin_part(self, value: TensorValue) -> torch.fx.Node:
        """Let all that is computed from a tensor have a history of its own."""
        node = value.node
        if node in self.parts:
            return node
        history = self.history()
        with self._builder.graph.inserting_after(node):
            part = self._builder.graph.call_function(apart, (node,))
        part.meta["example_value"] = value.fake.outline()
        if "stack_trace" in node.meta:  # one of several results has none
            part.meta["stack_trace"] = node.meta["stack_trace"]
        node.replace_all_uses_with(part, lambda user: user is not part)
        self.parts[part] = node
        value.node = part
        history.begin_part(part)
        self._in_parts = None
        return part

    def dissolve(self, node: torch.fx.Node) -> None:
        """Take a node away that gives what it is given: it was there for autograd alone."""
        for item in list(node.users):
            item.replace_all_uses_with(node.args[item.args[1]])  # type: ignore[index,arg-type]

    def give(self, node: torch.fx.Node, value: Any) -> None:
        """Say what a node gives that computes gradients."""
        for history in (self._history, self._in_parts):
            if history is not None:
                history.give(node, value)

    def leaf_at(self, node: torch.fx.Node) -> TensorValue | None:
        """The tensor that a node gave to autograd as a leaf."""
        inputs = (value for value in self._builder.inputs if value.placeholder is node)
        return self._leaves.get(node) or next(inputs, None)

    def spent(self, value: TensorValue) -> tuple[str, list[TensorValue]] | None:
        """Of a tensor whose backward was captured and cannot run again, what autograd calls its operation, and the
        inputs that it comes from."""
        if self._history is None or not value.fake.requires_grad:
            return None
        node = self._freed_behind(value.node)
        if node is None:
            return None
        return type(self._history.of(node).grad_fn).__name__, [] if _is_root(node) else self._inputs_behind(node)

    def _inputs_behind(self, node: torch.fx.Node) -> list[TensorValue]:
        assert self._history is not None
        reached = self._history.inputs_behind(node)
        return [value for value in self._builder.inputs if value.placeholder in reached]

    def _freed_behind(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """A tensor or the nearest one it was computed from whose backward cannot run again."""
        try:
            history = self.history()
        except HistoryUnknown:  # what comes after a backward may need data
            assert self._history is not None
            history = self._history
        if history.knows(node):
            return node if history.is_freed([node]) else None
        return next(filter(None, map(self._freed_behind, node.all_input_nodes)), None)

    def is_cut_off(self, value: TensorValue) -> bool:
        """Whether a tensor needs a gradient whose way the graph has cut into parts, or may need one."""
        if not self.parts or not value.fake.requires_grad or self._freed_behind(value.node) is not None:
            return False
        try:
            history = self.history_in_parts()
        except (HistoryUnknown, NotThin):  # a backward in between cannot be followed for all sizes
            return True
        return not self.parts.keys().isdisjoint(history.leaves([value.node]))


def _is_root(node: torch.fx.Node) -> bool:
    """Whether a backward begins at a tensor, as at the loss that most steps return: to lead it to each parameter would
    cost each call more than what is compiled saves."""
    return any(user.target is gradients and node in user.args[0] for user in node.users)  # type: ignore[operator]
