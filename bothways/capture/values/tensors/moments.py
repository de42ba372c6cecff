"""A tensor at one moment of the capture, for hooks and autograd nodes that belong to its history as it was then.

What hooks need is done after the graph has run, when everything they refer to exists. Tensors that are changed in
place in between may have another history by then; for them a node in the middle of the graph acts at the moment.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.fx

from bothways.capture.values.tensors.tensors import TensorValue
from bothways.node_facts import Watched, note_of_node

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


@dataclass(frozen=True)
class TensorMoment:
    """A tensor, the node that stood for it, and the graph's last node at the time."""

    tensor: TensorValue
    node: torch.fx.Node
    last: torch.fx.Node

    @classmethod
    def now(cls, tracer: Tracer, tensor: TensorValue) -> TensorMoment:
        return cls(tensor, tensor.node, tracer.graph.last_node)

    @property
    def is_input(self) -> bool:
        """Whether the tensor was as the caller gave it."""
        return self.tensor.source is not None and self.node is self.tensor.placeholder

    def has_passed(self, tracer: Tracer) -> bool:
        """Whether the tensor's place in the autograd graph may be another one when the graph has run."""
        return self.tensor.node is not self.node or tracer.graph.changes_after(self.last)

    def watch_node(self) -> None:
        """Have the very operation run that computes the tensor, of several results too."""
        if not self.is_input:
            watch_node(self.node)


def watch_node(node: torch.fx.Node) -> None:
    note_of_node(node, watched=Watched.NODE)
    producer: Any = node.args[0] if node.target is operator.getitem else node
    if "example_value" not in producer.meta:  # a tuple of tensors
        note_of_node(producer, watched=Watched.NODE)


@contextmanager
def acting_after(tracer: Tracer, after: torch.fx.Node) -> Iterator[torch.fx.Graph]:
    """Inside, nodes are recorded right after one that was recorded long ago."""
    while after.op == "placeholder" and after.next.op == "placeholder":
        after = after.next  # inputs come first, also those that were found later
    with tracer.graph.graph.inserting_after(after):
        yield tracer.graph.graph


def act_at(tracer: Tracer, moments: tuple[TensorMoment, ...], after: torch.fx.Node, target: Any) -> torch.fx.Node:
    """Call ``target`` with the tensors right after a node that was recorded long ago."""
    with acting_after(tracer, after) as graph:
        return graph.call_function(target, tuple(moment.node for moment in moments))


def result_of(emitter: Emitter, node: torch.fx.Node, hint: str) -> str:
    """The name of what a node gave that is no tensor; asking makes it an output of the graph."""
    if node not in emitter.tensors:
        emitter.tensors[node] = emitter.names.fresh(hint)
    return emitter.tensors[node]
