"""``threading.local()``: an object from outside whose attributes are those of the thread that calls.

Guards read them in that thread, and so does the program that stores them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.values.code.attributes import MISSING, find_class_attribute, is_data_descriptor
from bothways.capture.values.code.held_attributes import was_held
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.class_guards import guard_class_says
from bothways.capture.values.objects.objects import ObjectValue
from bothways.source_text import is_plain_name

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class ThreadLocalValue(ObjectValue):
    def generic_set_attr(self, tracer: Tracer, name: str, value: Value | None) -> None:
        attribute = find_class_attribute(tracer, self.cls, name)
        is_computed = attribute is not MISSING and is_data_descriptor(attribute)
        if is_computed or name in ("__class__", "__dict__"):
            tracer.stop("mutation_unknown", f"cannot set {name!r} of {self.describe()}")
        guard_class_says(tracer, self.cls, name)
        if value is None:
            self._check_deletable(tracer, name, attribute)
        self.store(tracer, name, value)

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        name = emitter.read(self.source)
        for attribute, value in self.attrs.items():
            if (value is None or attribute in self.moved) and was_held(self, attribute):
                emitter.effect(f"delattr({name}, {attribute!r})")
            if value is not None:
                target, content = f"{name}.{attribute}", emitter.rebuild(value)
                is_plain = is_plain_name(attribute)
                emitter.effect(f"{target} = {content}" if is_plain else f"setattr({name}, {attribute!r}, {content})")
