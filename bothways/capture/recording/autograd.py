"""What autograd knows of a graph under construction, for backward calls that are captured into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.fx

from bothways.capture.shapes.autograd_history import AutogradHistory
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.runtime.torch_state import torch_state

if TYPE_CHECKING:
    from bothways.capture.recording.graph import GraphBuilder


class GraphAutograd:
    """The leaves that a graph makes, and its history once a backward has asked for it."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._state = torch_state()  # which the graph begins with
        self._history: AutogradHistory | None = None
        self._leaves: dict[torch.fx.Node, TensorValue] = {}

    def meet(self, node: torch.fx.Node, value: TensorValue) -> None:
        """An operation gave a tensor; it may be a leaf that captured code has made."""
        if value.source is None and value.fake.is_new_leaf:
            self._leaves[node] = value

    def history(self) -> AutogradHistory:
        """What autograd knows of the graph so far."""
        builder = self._builder
        if self._history is None:
            self._history = AutogradHistory(builder.graph, self._state)
        self._history.follow({value.placeholder: value.obj for value in builder.inputs}, builder.numbers())
        return self._history

    def leaf_at(self, node: torch.fx.Node) -> TensorValue | None:
        """The tensor that a node gave to autograd as a leaf."""
        inputs = (value for value in self._builder.inputs if value.placeholder is node)
        return self._leaves.get(node) or next(inputs, None)

    def spent(self, value: TensorValue) -> str | None:
        """What autograd calls a tensor's operation, of a tensor whose backward was captured and cannot run again."""
        if self._history is None or not value.fake.requires_grad or not self.history().is_freed(value.node):
            return None
        return type(self.history().of(value.node).grad_fn).__name__
