"""What cleans up when it is let go: a generator that stands in a ``try``, whoever takes from one, an object whose class
has a ``__del__``.

Python does that at the moment the last reference goes. A program holds what it was given until it returns, so captured
code that drops such an object breaks there; a variable that holds one is handed on, whether or not it is read.
"""

from __future__ import annotations

import itertools
import types
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, cast

from bothways.capture.guards.sources import Local
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import LazyValue, Value

if TYPE_CHECKING:
    from bothways.capture.bytecode.interpreter import Frame
    from bothways.capture.tracer import Tracer

_CONTAINERS: tuple[Any, ...] = ([], (), "", b"", range(0), range(1 << 70), set(), {}, {}.values(), {}.items(), deque())
# Iterators that hold nothing but a container, so that nothing happens when they go.
OVER_CONTAINERS = frozenset(
    [type(iter(each)) for each in _CONTAINERS]
    + [type(reversed(each)) for each in _CONTAINERS if hasattr(each, "__reversed__")]
    + [type(iter(OrderedDict())), reversed]
)
# Iterators that take from others, which may be generators.
TAKERS = frozenset([zip, map, filter, enumerate]) | frozenset(
    kind for kind in vars(itertools).values() if isinstance(kind, type) and kind is not itertools.count
)


def check_dropped(tracer: Tracer, value: object) -> None:
    """Stop where the rest of a frame lets go of the iterator of a loop, unless that cannot matter."""
    if not tracer.options.is_continuation or len(tracer.running.frames) != 1 or not isinstance(value, LazyValue):
        return
    kind = type(value.obj)
    if not isinstance(value.source, Local):
        return
    if _has_end(kind):
        tracer.stop("object_unknown", f"a {kind.__name__} is let go, whose __del__ runs when nothing holds it any more")
    if not hasattr(kind, "__next__"):
        return
    if kind not in OVER_CONTAINERS:
        tracer.stop("loop_state", f"a {kind.__name__} is let go, which may clean up")
    tracer.guard("type({s0}) is {c0}", value.source, kind)


def check_forgotten(frame: Frame, name: str) -> None:
    """Stop where the rest of a frame gives a variable that holds such an iterator another value, or none."""
    value = frame.locals.get(name)
    others = (other for held, other in frame.locals.items() if held != name)
    if not isinstance(value, LazyValue) or any(_holds(other, value) for other in (*frame.stack, *others)):
        return
    if must_stay(value):
        check_dropped(frame.tracer, value)
    elif value.if_realized() is value and value.obj is not None and _is_variable(frame, value):
        frame.tracer.guard("type({s0}) is {c0}", value.source, type(value.obj))  # it may hold one at another time


def _holds(other: object, value: LazyValue) -> bool:
    """Whether something is the iterator, or takes from it."""
    if other is value or not isinstance(other, Value):
        return other is value
    return is_iterator(other) and any(_holds(part, value) for part in other.parts())


def _has_end(kind: type) -> bool:
    """Whether objects of a class say what is to be done when they go; generators know whether they are at their end."""
    return kind is not types.GeneratorType and hasattr(kind, "__del__")


def _is_variable(frame: Frame, value: LazyValue) -> bool:
    tracer = frame.tracer
    return tracer.options.is_continuation and len(tracer.running.frames) == 1 and isinstance(value.source, Local)


def holds_only_a_container(value: Value) -> bool:
    """Whether an iterator holds nothing but a container."""
    return (type(value.obj) if isinstance(value, LazyValue) else value.python_type()) in OVER_CONTAINERS


def is_iterator(value: object) -> bool:
    if not isinstance(value, Value) or isinstance(value, LazyValue) or value.told_later:
        return False
    return hasattr(value.python_type(), "__next__")


def must_stay(value: object) -> bool:
    """Whether a variable holds a generator that cleans up when it goes, or what takes from one."""
    if isinstance(value, linked.GeneratorValue):
        return value.must_clean_up()
    if isinstance(value, LazyValue):
        kind, generator = type(value.obj), cast("Any", value.obj)
        if kind is types.GeneratorType:
            return generator.gi_frame is not None
        return kind in TAKERS or _has_end(kind)
    return isinstance(value, Value) and is_iterator(value) and any(must_stay(part) for part in value.parts())
