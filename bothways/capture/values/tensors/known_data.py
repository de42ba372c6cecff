"""Data that is known: that of tensors which the captured code makes of constants alone.

``torch.nn.Transformer`` asks whether a mask is the causal one; rates are ``torch.linspace(0, 0.1, 4).tolist()``. What
such a tensor holds is computed at capture time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import ops
from bothways.capture.shapes.changes import changes_something, written_roots
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.node_facts import NO_CALL_FACTS, facts_of_call

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

OWN = (None, "torch", "torch.nn.functional", "_operator")  # modules of operations
MOST_NODES, MOST_ELEMENTS = 64, 1 << 22  # that are computed to find the answer to one question


def known_truth(tracer: Tracer, tensor: TensorValue) -> bool | None:
    """The truth of a tensor that is made of constants alone; None for others."""
    data = known_data(tracer, tensor) if tensor.is_single else None
    return None if data is None else bool(data)


def known_data(tracer: Tracer, tensor: TensorValue) -> torch.Tensor | None:
    """What a tensor holds that is made of constants alone; None for others."""
    if tracer.overrides.heeds_modes:
        return None
    nodes = _made_of(tensor.node)
    if nodes is None or any(not written.isdisjoint(nodes) for written in written_roots(tensor.node.graph.nodes)):
        return None
    values: dict[torch.fx.Node, Any] = {}
    with torch.no_grad():
        for node in nodes:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            function: Any = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
            values[node] = tracer.run_const(function, *args, **kwargs)
            if _dtype(values[node]) != _dtype(node.meta.get("example_value")):
                return None  # autocast was another then than now
    data: torch.Tensor = values[tensor.node]
    return data


def known_sizes(
    tracer: Tracer, args: list[Value], kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]] | None:
    """Arguments with a number for each whole number in a tensor that is made of constants alone, as ``view`` takes for
    sizes; None where there is none."""
    numbers = {place: _in_numbers(tracer, value) for place, value in (*enumerate(args), *kwargs.items())}
    if all(number is None for number in numbers.values()):
        return None
    named = {name: numbers[name] or value for name, value in kwargs.items()}
    return [numbers[place] or value for place, value in enumerate(args)], named


def _in_numbers(tracer: Tracer, value: Value) -> Value | None:
    """A value with numbers in the place of such tensors; None where it holds none."""
    value = value.realize()
    if isinstance(value, TensorValue):
        is_whole = not value.fake.dtype.is_floating_point and not value.fake.dtype.is_complex
        if not is_whole or value.fake.dtype is torch.bool or value.fake.shape:
            return None
        data = known_data(tracer, value)
        return None if data is None else ConstantValue(int(data))
    if not isinstance(value, (ListValue, TupleValue, SliceValue)):
        return None
    parts = list(value.parts())
    numbers = [_in_numbers(tracer, part) for part in parts]
    if all(number is None for number in numbers):
        return None
    parts = [number or part for number, part in zip(numbers, parts, strict=True)]
    return SliceValue(parts) if isinstance(value, SliceValue) else TupleValue(parts)


def _dtype(value: Any) -> torch.dtype | None:
    return value.dtype if isinstance(value, torch.Tensor) else None


def _made_of(last: torch.fx.Node) -> dict[torch.fx.Node, None] | None:
    """All that a tensor is computed by, in order; None where something comes from outside, or draws or changes."""
    makers: set[torch.fx.Node] = set()
    pending = [last]
    while pending:
        node = pending.pop()
        if node in makers:
            continue
        if len(makers) == MOST_NODES or not _computes(node):
            return None
        makers.add(node)
        pending += node.all_input_nodes
    return {node: None for node in last.graph.nodes if node in makers}


def _computes(node: torch.fx.Node) -> bool:
    if node.op not in ("call_function", "call_method") or facts_of_call(node.target) != NO_CALL_FACTS:
        return False
    example = node.meta.get("example_value")
    shape = tuple(example.shape) if isinstance(example, torch.Tensor) else ()
    is_small = all(type(size) is int for size in shape) and math.prod(shape) <= MOST_ELEMENTS
    own = isinstance(node.target, str) or getattr(node.target, "__module__", "") in OWN
    return own and is_small and not ops.of_node(node).draws and not changes_something(node)
