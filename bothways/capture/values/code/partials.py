"""``functools.partial``: a function with some of its arguments, which may carry attributes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.sources import Attr, Item, Source
from bothways.capture.values.code.attributes import class_attribute
from bothways.capture.values.code.held_attributes import guard_held, keep_attribute
from bothways.capture.values.code.instance_dicts import InstanceDict
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.dicts import DictEntry, DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import is_callable
from bothways.capture.writing.emit import changes, stores
from bothways.source_text import is_plain_name

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class OwnKeywords(DictValue):
    """The keywords of a partial that captured code made."""

    partial: PartialValue

    def parts(self) -> Iterable[Value]:
        return (self.partial,)

    def rebuild(self, emitter: Emitter) -> str:
        return f"{emitter.rebuild(self.partial)}.keywords"

    rebuild_empty = rebuild

    def fill(self, emitter: Emitter, name: str) -> None:
        """The partial fills it."""


class PartialValue(Value):
    """A partial object, from outside or made by captured code."""

    def __init__(
        self, function: Value, args: Args, keywords: DictValue, *, obj: Any = None, source: Source | None = None
    ) -> None:
        self.function, self.args, self.keywords, self.obj, self.source = function, args, keywords, obj, source
        self.attrs: dict[str, Value | None] = {}
        self.moved: set[str] = set()

    @classmethod
    def external(cls, tracer: Tracer, obj: functools.partial[Any], source: Source) -> PartialValue:
        tracer.guard("type({s0}) is {c0}", source, functools.partial)
        tracer.guard("len({s0}.args) == {c0}", source, len(obj.args))
        tracer.guard("tuple({s0}.keywords) == {c0}", source, tuple(obj.keywords))
        value = cls(
            tracer.wrap(obj.func, Attr(source, "func")),
            [tracer.wrap(arg, Item(Attr(source, "args"), index)) for index, arg in enumerate(obj.args)],
            DictValue.external(tracer, obj.keywords, Attr(source, "keywords")),
            obj=obj,
            source=source,
        )
        tracer.remember(obj, value)
        return value

    @classmethod
    def make(cls, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """``functools.partial(f, *args, **kwargs)``; a partial of a plain partial is flattened, as Python does."""
        if not args:
            tracer.throw(TypeError, "type 'partial' takes at least one argument")
        if not is_callable(args[0]):
            tracer.throw(TypeError, "the first argument must be callable")
        function, held = args[0].realize(), list[tuple[Value, Value]]()
        own = [(ConstantValue(name), value) for name, value in kwargs.items()]
        if isinstance(function, PartialValue) and not function.has_attributes(tracer):
            held = [(entry.key, entry.value) for entry in function.keywords.known_entries()]
            args = [function.function, *function.args, *args[1:]]
        keywords = OwnKeywords.from_pairs(tracer, [*held, *own])
        assert isinstance(keywords, OwnKeywords)
        keywords.partial = value = cls(args[0].realize(), list(args[1:]), keywords)
        return value

    def with_own(self, tracer: Tracer, kwargs: Kwargs) -> Kwargs:
        """The keywords of a call, with those that the partial holds."""
        held = dict(self.keywords.constant_items(tracer))
        if not all(type(name) is str for name in held):
            tracer.throw(TypeError, "keywords must be strings")
        return {**held, **kwargs}

    def has_attributes(self, tracer: Tracer) -> bool:
        if self.source is not None and not self.attrs:
            tracer.guard("{s0}.__dict__" if self.obj.__dict__ else "not {s0}.__dict__", self.source)
        return bool(self.attrs or (self.obj is not None and self.obj.__dict__))

    def python_type(self) -> type:
        return functools.partial

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return protocols.call(tracer, self.function, [*self.args, *args], self.with_own(tracer, kwargs))

    # Attributes.

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(list(self.args))
        if name == "keywords":
            return self.keywords
        if name == "__dict__":
            return InstanceDict(self)
        if name in self.attrs:
            stored = self.attrs[name]
            if stored is not None:
                return stored
        elif self.source is not None:
            if name in self.obj.__dict__:
                return tracer.member(self.obj.__dict__[name], Attr(self.source, name), "{c0} in {s0}.__dict__")
            tracer.guard("{c0} not in {s0}.__dict__", self.source, name)
        return class_attribute(tracer, self, name)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if name in ("func", "args", "keywords", "__dict__", "__class__"):
            tracer.stop("mutation_unknown", f"cannot set {name!r} of {self.describe()}")
        self.store(tracer, name, value)

    def del_attr(self, tracer: Tracer, name: str) -> None:
        if not self.attrs.get(name, self.obj is not None and name in self.obj.__dict__):
            guard_held(tracer, self, name)
            tracer.throw(AttributeError, f"'functools.partial' object has no attribute {name!r}")
        self.store(tracer, name, None)

    def instance_dict(self) -> dict[str, Any]:
        held: dict[str, Any] = self.obj.__dict__
        return held

    def store(self, tracer: Tracer, name: str, value: Value | None) -> None:
        keep_attribute(tracer, self, name, value)

    # After the call.

    @property
    def two_phase(self) -> bool:  # type: ignore[override]
        return bool(self.attrs) or not all(map(_is_text, self.keywords.entries.values()))

    def parts(self) -> Iterable[Value]:
        stored = [value for value in self.attrs.values() if value is not None]
        if self.source is not None:
            return stored
        return [self.function, *self.args, *DictValue.parts(self.keywords), *stored]

    def rebuild(self, emitter: Emitter) -> str:
        make = emitter.inject(functools.partial, "partial")
        arguments = [emitter.rebuild(self.function), *map(emitter.rebuild, self.args)]
        pairs = self.keywords.constant_items(emitter.tracer)
        named = {name: emitter.rebuild(value) for name, value in pairs}
        if all(map(is_plain_name, named)):
            arguments += [f"{name}={text}" for name, text in named.items()]
        else:
            arguments.append("**{" + ", ".join(f"{name!r}: {text}" for name, text in named.items()) + "}")
        return f"{make}({', '.join(arguments)})"

    def rebuild_empty(self, emitter: Emitter) -> str:
        arguments = [emitter.rebuild(self.function), *map(emitter.rebuild, self.args)]
        return f"{emitter.inject(functools.partial, 'partial')}({', '.join(arguments)})"

    def fill(self, emitter: Emitter, name: str) -> None:
        DictValue.fill(self.keywords, emitter, f"{name}.keywords")
        for statement in stores(emitter, name, self.attrs):
            emitter.build(statement)

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        name = emitter.read(self.source)
        for statement in changes(emitter, name, self.attrs, self.obj.__dict__, self.moved):
            emitter.effect(statement)


def _is_text(entry: DictEntry) -> bool:
    """Whether a key can be one of a call; others are put into the dictionary of a partial that is made without them."""
    key = entry.key.realize()
    return isinstance(key, ConstantValue) and type(key.content) is str
