"""Writes after which autograd refuses a view that came into the graph.

One of several views, or one taken without gradients, cannot be used any more once its memory was written to, whoever
wrote. Stand-ins of inputs know nothing of each other, so such a write ends the graph: it runs as the caller's Python,
and what uses the view after it raises at its own line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bothways import ops, torch_compat
from bothways.capture.shapes.changes import root_of
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.node_facts import facts_of_node

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


class WrittenInputs:
    """The memory of inputs that the graph has written to so far."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._memories: set[object] = set()

    def check_operation(
        self, name: str, args: list[Value], kwargs: dict[str, Value], inputs: list[TensorValue]
    ) -> None:
        """Stop before an operation that writes where a view lies that autograd then refuses."""
        for tensor in written_by(name, args, kwargs):
            memory = facts_of_node(root_of(tensor.node)).memory
            if memory is not None and memory not in self._memories:
                for value in inputs:
                    if facts_of_node(value.placeholder).memory == memory:
                        self._check(value)
                self._memories.add(memory)

    def check_input(self, value: TensorValue) -> None:
        """Stop at an input that comes in when its memory was written to."""
        if self._memories and facts_of_node(value.placeholder).memory in self._memories:
            self._check(value)

    def _check(self, value: TensorValue) -> None:
        tensor, source = value.obj, value.source
        if tensor is None or source is None or (tensor.is_leaf and not tensor._is_view()):
            return  # a parameter: an optimizer's step pays no guard
        if not torch_compat.stays_usable(tensor):
            self._tracer.stop("mutation_unknown", f"autograd refuses {source} once its memory was written to")
        self._tracer.guard("{c0}({s0})", source, torch_compat.stays_usable)


def written_by(name: str, args: list[Value], kwargs: dict[str, Value]) -> list[TensorValue]:
    """The tensors that an operation writes to, as far as its name and arguments tell."""
    operation = ops.named(name)
    targets: list[Any] = []
    if args and ("inplace" in kwargs or (operation.writes and not operation.writes_no_elements)):
        targets.append(args[0].realize())
    if "out" in kwargs:
        targets.append(kwargs["out"].realize())
    tensors: list[TensorValue] = []
    for target in targets:
        items = target.items if isinstance(target, (ListValue, TupleValue)) else [target]
        tensors += [item for item in (each.realize() for each in items) if isinstance(item, TensorValue)]
    return tensors
