"""When Python that runs inside a graph can be told from Python that runs at its own line.

The forward of a custom function runs while the graph does. What captured code changed before is replayed after the
graph; what captured code read was read before it. So forward may not read what was changed before it, and what it
changes may not be looked at by captured code afterwards. Otherwise the capture stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bothways.capture.guards.sources import Item, Source
from bothways.capture.values.collections.containers import ListValue
from bothways.capture.values.collections.deques import DequeValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.collections.sets import SetValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.nn.modules import ModuleValue
from bothways.capture.values.objects.objects import ObjectValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Objects that captured code cannot reach without the tracer being asked for them.
ASKED_FOR = (ListValue, DictValue, SetValue, DequeValue, ObjectValue, ModuleValue)


def check_order(tracer: Tracer, side: Tracer, name: str) -> None:
    """Stop unless the code that ``side`` has looked at may run while the graph does; remember what it changes."""
    _check_reads(tracer, side, name)
    changes = side.effects.left_to_python[len(tracer.effects.left_to_python) :]
    if not changes and not side.effects:
        return
    changes += [_reached(tracer, side, value, name) for value in side.effects.values()]
    known = any(tracer.known(obj) is not None for obj, _ in changes)
    if known or side.effects.globals() or tracer.effects.changed or side.graph.may_fail:
        tracer.stop("autograd_function", f"{name} changes something outside of it")
    tracer.effects.leave_to_python(changes)


def _check_reads(tracer: Tracer, side: Tracer, name: str) -> None:
    for changed in tracer.effects.values():
        if changed.only_registers:
            continue
        obj = tracer.object_of(changed)
        if obj is None or side.known(obj) is not None:
            tracer.stop("autograd_function", f"{name} may read what the function has changed before")
        for other in side.known_values():  # another call may give one object where this one gave two
            if changed.source is not None and other.source is not None and type(other) is type(changed):
                tracer.guard("{s0} is not {s1}", changed.source, other.source)
    written = [Item(write.globals_, write.variable) for write in tracer.effects.globals()]
    if any(step in written for guard in side.assumptions.guards for source in guard.sources for step in _steps(source)):
        tracer.stop("autograd_function", f"{name} reads a global that the function has changed before")


def _reached(tracer: Tracer, side: Tracer, value: object, name: str) -> tuple[object, Value]:
    obj = side.object_of(value)
    if obj is None or type(value) not in ASKED_FOR:
        tracer.stop("autograd_function", f"{name} changes something outside of it")
    assert isinstance(value, Value)
    return obj, value


def _steps(source: Source) -> Iterator[Source]:
    step: Source | None = source
    while step is not None:
        yield step
        step = step.base
