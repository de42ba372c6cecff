"""Writes that go by the elements one by one: to some that share their memory, to a part of what is read, twice to one.

Eager refuses most of them, where people catch it; the others depend on an order that a graph does not keep. They end
the graph, and run at the user's line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways import ops
from bothways.capture.recording.refused_views import written_by
from bothways.capture.values.core.base import Value
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.grad.tracing.overlaps import are_met_again, is_shared, meet_in_part

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def check_writes(tracer: Tracer, kind: str, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Stop before an operation that writes so; ``kind`` is the fx node's."""
    listed = written_by(name, args, kwargs)
    if len(listed) > 1 and are_met_again([value.fake.meta for value in listed]):
        tracer.stop("mutation_unknown", f"{name} writes to one memory twice")
    operation = ops.named(name)
    writes = operation.writes if kind == "call_method" else operation.writes_left
    if not writes or operation.writes_no_elements or operation.may_write_shared or not args:
        return
    written, *others = (arg.realize() for arg in args)
    if not isinstance(written, TensorValue):
        return
    if is_shared(written.fake.shape, written.fake.stride):
        tracer.stop("mutation_unknown", f"{name} writes to elements that share their memory")
    read = [value for value in others if isinstance(value, TensorValue)]
    if any(meet_in_part(written.fake.meta, value.fake.meta) for value in read):
        tracer.stop("mutation_unknown", f"{name} writes to a part of what it reads")
