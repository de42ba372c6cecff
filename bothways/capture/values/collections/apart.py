"""Objects that captured code puts into a set of its own, as ``named_modules`` does, where each call has others.

Such objects need not be those of the call that was captured, they must be told apart: one guard says that as many
places lead to as many objects. Whoever asks for more than membership relies on the very objects after all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bothways.capture.guards.guards import distinct_template
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Value

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


class ToldApart:
    """The objects from outside that one set was asked about, and those of them of which only that is assumed."""

    def __init__(self) -> None:
        self._asked: dict[Value, None] = {}
        self._others: dict[Value, None] = {}  # which were others at an earlier call

    def takes(self, tracer: Tracer, item: Value) -> bool:
        """Whether an object is known by being none of the others, and not by being the same one at each call."""
        if not isinstance(item, linked.ObjectValue) or item.source is None or not item.is_its_own_key(tracer):
            return False
        self._asked[item] = None
        if not tracer.symbols.object_changes(item.obj, item.source):
            return False
        if not self._others:
            tracer.assumptions.check_at_end(lambda: self._guard(tracer))
        self._others[item] = None
        return True

    def rely(self, tracer: Tracer, items: Iterable[Value]) -> None:
        """More is asked about these than whether they are in the set."""
        for item in items:
            if item in self._others and isinstance(item, linked.ObjectValue):
                item.rely_on_identity(tracer)

    def _guard(self, tracer: Tracer) -> None:
        kinds: dict[type, list[Value]] = {}
        for item in self._asked:
            kinds.setdefault(item.python_type(), []).append(item)
        for items in kinds.values():  # those of two kinds are two objects
            sources = [item.source for item in items if item.source is not None]
            if len(sources) == 2:
                tracer.guard("{s0} is not {s1}", *sources)
            elif len(sources) > 2:
                tracer.guard(distinct_template(len(sources)), *sources)
