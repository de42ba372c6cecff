"""Python functions and bound methods.

Calling one captures its body into the same graph: arguments are bound as Python binds them, a frame is
pushed, and generators become suspended frames. A function from outside is guarded by its code, so another
function with the same code and the same values behind it needs no new program.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bothways.capture.guards import policy
from bothways.capture.guards.guards import WeakIdentity
from bothways.capture.guards.sources import Attr, Injected, Item, Source
from bothways.capture.values.code.binding import bound_arguments
from bothways.capture.values.code.cells import external_closure
from bothways.capture.values.code.function_fields import AS_VALUES, FIELDS, documentation
from bothways.capture.values.code.held_attributes import keep_attribute
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, is_constant_type
from bothways.capture.values.core.protocols import same_object
from bothways.capture.writing.emit import changes

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class FunctionValue(Value):
    """A function written in Python: one that existed before, or one the captured code defined."""

    def __init__(
        self,
        code: types.CodeType,
        globals_: dict[str, Any],
        closure: list[Value],
        defaults: list[Value],
        keyword_defaults: dict[str, Value],
        *,
        function: types.FunctionType | None = None,
        source: Source | None = None,
        name: str | None = None,
    ) -> None:
        self.code, self.globals, self.closure = code, globals_, closure
        self.defaults, self.keyword_defaults = defaults, keyword_defaults
        self.function, self.source = function, source
        self.name = name or code.co_name
        self.annotations: Value | None = None
        self.annotate: Value | None = None  # since 3.14: what gives the annotations when they are asked for
        # What captured code stored in ``__dict__``, None for what it deleted; and the fields it read or stored.
        self.attrs: dict[str, Value | None] = {}
        self.moved: set[str] = set()
        self.fields: dict[str, Value] = {}
        self._changed_fields: set[str] = set()

    @classmethod
    def external(
        cls,
        tracer: Tracer,
        function: types.FunctionType,
        source: Source,
        *,
        guarded: bool = True,
        is_root: bool = False,
    ) -> FunctionValue:
        """A function from outside; one that is known by identity has its body stamped instead of being guarded.

        The one that is captured (``is_root``) may be another of the same code at the next call, with other defaults.
        """
        if guarded:
            tracer.guard("type({s0}) is {c0}", source, types.FunctionType)
            tracer.guard("{s0}.__code__ is {c0}", source, function.__code__)
        else:
            tracer.definitions.body(function)
        closure = external_closure(tracer, function, source)
        # A library function's defaults are facts like its code; a user's may be replaced and are guarded when used.
        is_fact = not guarded and not is_root and policy.is_library_module(function.__module__ or "")
        defaults = [
            ConstantValue(value)
            if is_fact and is_constant_type(type(value))
            else tracer.wrap(value, Item(Attr(source, "__defaults__"), index))
            for index, value in enumerate(function.__defaults__ or ())
        ]
        if guarded:
            count = len(defaults)
            check = "len({s0}.__defaults__) == {c0}" if count else "not {s0}.__defaults__"
            tracer.guard(check, source, *([count] if count else []))
        keyword_defaults = {
            name: tracer.wrap(value, Item(Attr(source, "__kwdefaults__"), name))
            for name, value in (function.__kwdefaults__ or {}).items()
        }
        value = cls(
            function.__code__,
            function.__globals__,
            closure,
            defaults,
            keyword_defaults,
            function=function,
            source=source,
            name=function.__name__,
        )
        tracer.remember(function, value)
        return value

    def python_type(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return f"the function {self.name}"

    def hash_key(self, tracer: Tracer) -> Hashable:
        if self.function is not None and self.source is not None:
            tracer.guard("{s0} is {c0}", self.source, WeakIdentity(self.function))
            return self.function
        return self

    def text(self, tracer: Tracer, conversion: str) -> str:
        if self.function is None or "__qualname__" in self.fields:
            return super().text(tracer, conversion)
        self.hash_key(tracer)  # the text says where the very function lies
        return repr(self.function)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return linked.call_function(tracer, self, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__call__":
            return self.call(tracer, args, kwargs)
        if name == "__get__":
            owner = args[0].realize()
            unbound = isinstance(owner, ConstantValue) and owner.content is None
            return self if unbound else MethodValue(self, args[0])
        return super().call_method(tracer, name, args, kwargs)

    def bind(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> dict[str, Value]:
        """The callee's locals, bound as Python binds them, with Python's own complaints."""
        return bound_arguments(tracer, self, args, kwargs)

    @property
    def qualname(self) -> str:
        return self.function.__qualname__ if self.function is not None else self.code.co_qualname

    # Attributes: fields that CPython keeps in C, and what is in ``__dict__``.

    def instance_dict(self) -> dict[str, Any]:
        return self.function.__dict__ if self.function is not None else {}

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in FIELDS:
            if name not in self.fields:
                self.fields[name] = self._field(tracer, name)
            return self.fields[name]
        if name == "__dict__":
            return linked.InstanceDict(self)
        if name in self.attrs:
            stored = self.attrs[name]
            if stored is not None:
                return stored
        elif self.source is not None:
            if name in self.instance_dict():
                return tracer.member(
                    self.instance_dict()[name], Attr(self.source, name), "{c0} in {s0}.__dict__"
                )
            tracer.guard("{c0} not in {s0}.__dict__", self.source, name)
        if linked.lookup_attribute(types.FunctionType, name) is not linked.MISSING:
            return linked.class_attribute(tracer, self, name)
        tracer.throw(AttributeError, f"'function' object has no attribute {name!r}")

    def _field(self, tracer: Tracer, name: str) -> Value:
        if self.function is not None and self.source is not None:
            return tracer.wrap(self._field_outside(tracer, name), Attr(self.source, name))
        if name == "__annotations__":
            self.annotations = self.annotations or self._annotations(tracer)
            return self.annotations
        if name == "__annotate__" and self.annotate is not None:
            return self.annotate
        if name == "__kwdefaults__" and self.keyword_defaults:
            defaults = self.keyword_defaults.items()
            return linked.DictValue.from_pairs(tracer, [(ConstantValue(key), value) for key, value in defaults])
        sequences = {"__defaults__": self.defaults, "__closure__": self.closure, "__type_params__": []}
        if sequences.get(name) or name == "__type_params__":
            return linked.TupleValue(list(sequences[name]))
        constants = {
            "__name__": self.name,
            "__qualname__": self.qualname,
            "__code__": self.code,
            "__module__": self.globals.get("__name__"),
            "__doc__": documentation(self.code),
        }
        return ConstantValue(constants.get(name))

    def _field_outside(self, tracer: Tracer, name: str) -> object:
        try:
            return getattr(self.function, name)
        except Exception as error:  # annotations that cannot be evaluated
            tracer.stop("object_unknown", f"{name} of {self.describe()} cannot be read: {type(error).__name__}")

    def _annotations(self, tracer: Tracer) -> Value:
        if self.annotate is None:
            return linked.DictValue.from_pairs(tracer, [])
        return protocols.call(tracer, self.annotate, [ConstantValue(AS_VALUES)])

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if name in ("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__", "__dict__"):
            tracer.stop("mutation_unknown", f"cannot set {name!r} of {self.describe()}")
        if name in ("__name__", "__qualname__") and not issubclass(value.python_type(), str):
            tracer.throw(TypeError, f"{name} must be set to a string object")
        if name == "__name__":
            self.name = protocols.as_string(tracer, value)
        if name in FIELDS:
            self.fields[name] = value
            self._changed_fields.add(name)
        else:
            self.store(tracer, name, value)
        self.note_change(tracer)

    def store(self, tracer: Tracer, name: str, value: Value | None) -> None:
        keep_attribute(tracer, self, name, value)

    def del_attr(self, tracer: Tracer, name: str) -> None:
        if name in FIELDS or name == "__dict__":
            tracer.stop("mutation_unknown", f"cannot delete {name!r} of {self.describe()}")
        self.get_attr(tracer, name)  # deleting what is not there raises
        self.store(tracer, name, None)

    # After the call.

    two_phase = True

    def parts(self) -> Iterable[Value]:
        changed = [self.fields[name] for name in self._changed_fields]
        stored = [*changed, *(value for value in self.attrs.values() if value is not None)]
        if self.source is not None:
            return stored
        annotations = [value for value in (self.annotations, self.annotate) if value is not None]
        return [*self.closure, *self.defaults, *self.keyword_defaults.values(), *annotations, *stored]

    def name_hint(self) -> str:
        return self.name if self.name.isidentifier() else "function"

    def rebuild_empty(self, emitter: Emitter) -> str:
        make = emitter.inject(types.FunctionType, "FunctionType")
        code = emitter.inject(self.code, f"{self.code.co_name}_code")
        globals_ = emitter.read(emitter.tracer.globals_source(self.globals))
        cells = "".join(f"{emitter.rebuild(cell)}, " for cell in self.closure)
        return f"{make}({code}, {globals_}, {self.name!r}, None, {f'({cells})' if cells else None})"

    def fill(self, emitter: Emitter, name: str) -> None:
        if self.defaults:
            emitter.build(f"{name}.__defaults__ = ({emitter.rebuild_all(self.defaults)},)")
        if self.keyword_defaults:
            pairs = ", ".join(f"{key!r}: {emitter.rebuild(value)}" for key, value in self.keyword_defaults.items())
            emitter.build(f"{name}.__kwdefaults__ = {{{pairs}}}")
        if self.annotate is not None:
            if self.annotations is not None:  # a function keeps one or the other of those that it is told
                emitter.tracer.stop("escape", "a function leaves whose annotations were read")
            emitter.build(f"{name}.__annotate__ = {emitter.rebuild(self.annotate)}")
        if self.annotations is not None:
            emitter.build(f"{name}.__annotations__ = {self._annotations_text(emitter)}")
        for statement in self._stores(emitter, name):
            emitter.build(statement)

    def _annotations_text(self, emitter: Emitter) -> str:
        assert self.annotations is not None
        if not isinstance(self.annotations, linked.TupleValue):
            return emitter.rebuild(self.annotations)
        # CPython passes names and values in one flat tuple and makes the dictionary when it is asked for.
        flat = [emitter.rebuild(item) for item in self.annotations.items]
        return "{" + ", ".join(f"{name}: {value}" for name, value in zip(flat[::2], flat[1::2], strict=True)) + "}"

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        for statement in self._stores(emitter, emitter.read(self.source)):
            emitter.effect(statement)

    def _stores(self, emitter: Emitter, name: str) -> Iterator[str]:
        for attribute in sorted(self._changed_fields):
            yield f"{name}.{attribute} = {emitter.rebuild(self.fields[attribute])}"
        yield from changes(emitter, name, self.attrs, self.instance_dict(), self.moved)


class MethodValue(Value):
    """A Python function bound to an object."""

    def __init__(self, function: Value, owner: Value, source: Source | None = None) -> None:
        self.function, self.owner, self.source = function, owner, source

    def python_type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return f"a method, {self.function.describe()}"

    def identity(self) -> object:
        return self

    def hash_key(self, tracer: Tracer) -> Hashable:
        return (self.function.realize().hash_key(tracer), id(self.owner.realize()))

    def binary(self, tracer: Tracer, op: Any, other: Value, reflected: bool) -> Value | None:
        if op.symbol not in ("==", "!=") or not isinstance(other, MethodValue):
            return None
        same = same_object(tracer, self.function, other.function) and same_object(tracer, self.owner, other.owner)
        return ConstantValue(same == (op.symbol == "=="))

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return self.function.realize().call(tracer, [self.owner, *args], kwargs)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        return self.function.realize().get_attr(tracer, name)

    def parts(self) -> Iterable[Value]:
        return (self.function, self.owner)

    def rebuild(self, emitter: Emitter) -> str:
        bind = emitter.inject(types.MethodType, "MethodType")
        return f"{bind}({emitter.rebuild(self.function)}, {emitter.rebuild(self.owner)})"


def library_function(tracer: Tracer, function: types.FunctionType) -> FunctionValue:
    """A function of a library or a stand-in: inlined like any other, its body stamped."""
    known = tracer.known(function)
    if isinstance(known, FunctionValue):
        return known
    source: Injected = tracer.inject(function, function.__qualname__)
    return FunctionValue.external(tracer, function, source, guarded=False)


