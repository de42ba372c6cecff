"""Python modules: their attributes are library facts or user globals, guarded accordingly."""

from __future__ import annotations

import types
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards import policy
from bothways.capture.guards.sources import Attr, Item, Source
from bothways.capture.values.code.attributes import is_data_descriptor, lookup
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Value

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class NamespaceValue(Value):
    """A module object."""

    def __init__(self, module: types.ModuleType, source: Source | None = None) -> None:
        self.module, self.source = module, source

    def python_type(self) -> type:
        return types.ModuleType

    def constant(self) -> Any:
        return self.module

    def identity(self) -> object:
        return self.module

    def hash_key(self, tracer: Tracer) -> Hashable:
        return self.module

    def describe(self) -> str:
        return f"the module {self.module.__name__}"

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        written = tracer.effects.read_global(self.module.__dict__, name)
        if written is not None:
            if written.value is None:
                tracer.throw(AttributeError, f"module {self.module.__name__!r} has no attribute {name!r}")
            return written.value
        if policy.is_library_module(self.module.__name__):
            return self._definition(tracer, name)
        globals_ = self.module.__dict__
        if name in globals_:
            return tracer.member(globals_[name], Item(tracer.globals_source(globals_), name), "{c0} in {s0}")
        if "__getattr__" in globals_:
            tracer.stop("attribute_unknown", f"{self.describe()} makes its attributes on demand")
        tracer.throw(AttributeError, f"module {self.module.__name__!r} has no attribute {name!r}")

    def _definition(self, tracer: Tracer, name: str) -> Value:
        """What a library's module has; where its class computes it, that is a setting, which may change."""
        cls = type(self.module)
        if cls is not types.ModuleType and is_data_descriptor(lookup(cls, name)) and name != "__dict__":
            source = tracer.inject(self.module, self.module.__name__)
            return tracer.wrap(tracer.run_const(getattr, self.module, name), Attr(source, name))
        try:
            return linked.library_value(tracer, tracer.run_const(getattr, self.module, name))
        finally:  # that it is not there is read, too
            tracer.definitions.name(self.module.__name__, self.module.__dict__, name)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if policy.is_library_module(self.module.__name__):
            tracer.stop("mutation_unknown", f"{name!r} of {self.describe()} is replaced inside the function")
        globals_ = self.module.__dict__
        tracer.effects.write_global(globals_, tracer.globals_source(globals_), name, value)

    def del_attr(self, tracer: Tracer, name: str) -> None:
        self.get_attr(tracer, name)
        globals_ = self.module.__dict__
        tracer.effects.write_global(globals_, tracer.globals_source(globals_), name, None)

    def text(self, tracer: Tracer, conversion: str) -> str:
        return repr(self.module)

    def rebuild(self, emitter: Emitter) -> str:
        return emitter.inject(self.module, self.module.__name__)
