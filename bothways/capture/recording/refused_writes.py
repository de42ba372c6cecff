"""Writes that go by the elements one by one: to some that share their memory, to what is read at other places, or in
part, twice to one.

Eager refuses most of them, where people catch it; the others depend on an order that a graph does not keep. They end
the graph, and run at the user's line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bothways import ops
from bothways.capture.recording.refused_views import written_by
from bothways.capture.shapes.changes import root_of
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.grad.tracing.overlaps import are_met_again, is_shared, meet_in_part

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def _read_elsewhere(name: str, args: list[Value], kwargs: dict[str, Value]) -> list[TensorValue]:
    """The tensors that an operation reads, beside what it writes to, at other places than it writes."""
    arguments = [arg.realize() for arg in args]
    if ops.named(name).writes_left:  # ``x[index] = y``, or ``x += y``
        has_index = any(isinstance(part, TensorValue) for part in _parts(arguments[1:2]))
        read = arguments[2:] if has_index else []
    elif ops.goes_by_places(name):
        read = []
    else:
        read = arguments if "out" in kwargs else arguments[1:]
        read += [arg.realize() for keyword, arg in kwargs.items() if keyword != "out"]
    return [part for part in _parts(read) if isinstance(part, TensorValue)]


def _parts(values: list[Value]) -> list[Value]:
    """Values, and those in tuples and lists among them."""
    parts = [(value.items if isinstance(value, (ListValue, TupleValue)) else [value]) for value in values]
    return [part.realize() for several in parts for part in several]


def _takes_gradient(value: Value) -> bool:
    """Whether a tensor gets a gradient behind the graph."""
    return isinstance(value, TensorValue) and isinstance(value.attrs.get("grad"), TensorValue)


def _guard_histories(tracer: Tracer, written: list[TensorValue]) -> None:
    """Eager refuses to change a leaf that needs a gradient: what is compiled for other inputs is not for leaves."""
    roots = {root_of(value.node) for value in written if value.fake.requires_grad} if torch.is_grad_enabled() else set()
    if not any(root.op == "placeholder" for root in roots):
        return
    for value in tracer.graph.inputs:
        has_history = value.obj is not None and value.obj.requires_grad and not value.obj.is_leaf
        if has_history and value.placeholder in roots and value.source is not None:
            tracer.guard("not {s0}.is_leaf", value.source)


def check_writes(tracer: Tracer, kind: str, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Stop before an operation that writes so; ``kind`` is the fx node's."""
    listed = written_by(name, args, kwargs)
    if len(listed) > 1 and are_met_again([value.fake.meta for value in listed]):
        tracer.stop("mutation_unknown", f"{name} writes to one memory twice")
    if len(listed) == 1:
        read = [value.fake.meta for value in _read_elsewhere(name, args, kwargs)]
        if any(are_met_again([listed[0].fake.meta, other]) for other in read):
            tracer.stop("mutation_unknown", f"{name} writes to what it reads at other places")
    _guard_histories(tracer, listed)
    operation = ops.named(name)
    if operation.reshapes and args and _takes_gradient(args[0].realize()):
        tracer.stop("mutation_unknown", f"{name} reshapes a tensor whose grad was set for the shape it had")
    outside = not torch.is_inference_mode_enabled() and not tracer.options.fullgraph  # where the graph raises
    if tracer.graph.for_inference and outside:
        laid_out = [arg.realize() for arg in args[:1]] if operation.writes_no_elements else []
        changed = (value.node for value in (*listed, *laid_out) if isinstance(value, TensorValue))
        if not tracer.graph.for_inference.isdisjoint(map(root_of, changed)):
            tracer.stop("mutation_unknown", f"{name} changes a tensor of inference mode outside of that mode")
    if not operation.may_write_shared and any(is_shared(value.fake.shape, value.fake.stride) for value in listed):
        tracer.stop("mutation_unknown", f"{name} writes to elements that share their memory")
    writes = operation.writes if kind == "call_method" else operation.writes_left
    if not writes or operation.writes_no_elements or operation.may_write_shared or not args:
        return
    written, *others = (arg.realize() for arg in args)
    if not isinstance(written, TensorValue):
        return
    tensors = [value for value in others if isinstance(value, TensorValue)]
    if any(meet_in_part(written.fake.meta, value.fake.meta) for value in tensors):
        tracer.stop("mutation_unknown", f"{name} writes to a part of what it reads")
