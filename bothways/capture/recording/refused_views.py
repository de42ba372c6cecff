"""Writes after which autograd refuses a view that came into the graph.

One of several views, or one taken without gradients, cannot be used any more once its memory was written to, whoever
wrote. Stand-ins of inputs know nothing of each other, so such a write ends the graph: it runs as the caller's Python,
and what uses the view after it raises at its own line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bothways import ops, torch_compat
from bothways.capture.shapes.changes import path_of, root_of
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.node_facts import facts_of_node

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


NOT_IN_PLACE = ConstantValue(False)


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
                there = [value for value in inputs if facts_of_node(value.placeholder).memory == memory]
                if any(map(_is_no_leaf, there)) and _is_apart(tensor, there):
                    continue
                for value in there:
                    self._check(value)
                self._memories.add(memory)

    def check_input(self, value: TensorValue) -> None:
        """Stop at an input that comes in when its memory was written to."""
        if self._memories and facts_of_node(value.placeholder).memory in self._memories:
            self._check(value)

    def _check(self, value: TensorValue) -> None:
        tensor, source = value.obj, value.source
        if tensor is None or source is None or not _is_no_leaf(value):
            return  # a parameter: an optimizer's step pays no guard
        if not torch_compat.stays_usable(tensor):
            self._tracer.stop("mutation_unknown", f"autograd refuses {source} once its memory was written to")
        self._tracer.guard("{c0}({s0})", source, torch_compat.stays_usable)


def _is_no_leaf(value: TensorValue) -> bool:
    return value.obj is not None and (not value.obj.is_leaf or value.obj._is_view())


def _is_apart(tensor: TensorValue, inputs: list[TensorValue]) -> bool:
    """Whether PyTorch's own operations have made a tensor that lies in none of these, though its record does not tell
    that it is no view: their stand-ins share memory where tensors will."""
    *steps, root = path_of(tensor.node)
    if not all(map(_is_torchs, steps)):
        return False
    known = [root.meta.get("example_value"), *(value.fake.meta for value in inputs)]
    memories = {torch_compat.storage_identity(like) for like in known if isinstance(like, torch.Tensor)}
    return torch_compat.storage_identity(tensor.fake.meta) not in memories


def _is_torchs(node: torch.fx.Node) -> bool:
    home = getattr(node.target, "__module__", None)
    return isinstance(node.target, str) or (isinstance(home, str) and home.partition(".")[0] in ("torch", "_operator"))


def written_by(name: str, args: list[Value], kwargs: dict[str, Value]) -> list[TensorValue]:
    """The tensors that an operation writes to, as far as its name and arguments tell."""
    operation = ops.named(name)
    targets: list[Any] = []
    in_place = kwargs.get("inplace", NOT_IN_PLACE).realize()
    says_so = not (isinstance(in_place, ConstantValue) and not in_place.content)
    if args and (says_so or (operation.writes and not operation.writes_no_elements)):
        targets.append(args[0].realize())
    if "out" in kwargs:
        targets.append(kwargs["out"].realize())
    tensors: list[TensorValue] = []
    for target in targets:
        items = target.items if isinstance(target, (ListValue, TupleValue)) else [target]
        tensors += [item for item in (each.realize() for each in items) if isinstance(item, TensorValue)]
    return tensors
