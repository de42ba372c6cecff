"""``functools.partial``: a callable with some of its arguments filled in."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture import protocols
from bothways.capture.sources import Attr, Item, Source
from bothways.capture.values.base import Args, Kwargs, Value
from bothways.capture.values.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.tracer import Tracer


class PartialValue(Value):
    """A partial object, from outside or made by captured code."""

    def __init__(self, function: Value, args: Args, kwargs: Kwargs, source: Source | None = None) -> None:
        self.function, self.args, self.kwargs, self.source = function, args, kwargs, source

    @classmethod
    def external(cls, tracer: Tracer, obj: functools.partial[Any], source: Source) -> PartialValue:
        tracer.guard("type({s0}) is {c0}", source, functools.partial)
        tracer.guard("len({s0}.args) == {c0}", source, len(obj.args))
        tracer.guard("tuple({s0}.keywords) == {c0}", source, tuple(obj.keywords))
        value = cls(
            tracer.wrap(obj.func, Attr(source, "func")),
            [tracer.wrap(arg, Item(Attr(source, "args"), index)) for index, arg in enumerate(obj.args)],
            {name: tracer.wrap(arg, Item(Attr(source, "keywords"), name)) for name, arg in obj.keywords.items()},
            source,
        )
        tracer.remember(obj, value)
        return value

    @classmethod
    def make(cls, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """``functools.partial(f, *args, **kwargs)``; a partial of a partial is flattened, as Python does."""
        function = args[0].realize()
        if isinstance(function, PartialValue):
            return cls(function.function, [*function.args, *args[1:]], {**function.kwargs, **kwargs})
        return cls(function, list(args[1:]), dict(kwargs))

    def python_type(self) -> type:
        return functools.partial

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return protocols.call(tracer, self.function, [*self.args, *args], {**self.kwargs, **kwargs})

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.values.containers import TupleValue
        from bothways.capture.values.dicts import DictValue
        from bothways.capture.values.objects import class_attribute

        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(list(self.args))
        if name == "keywords":
            return DictValue.from_pairs(tracer, [(ConstantValue(key), value) for key, value in self.kwargs.items()])
        return class_attribute(tracer, self, name)

    def parts(self) -> Iterable[Value]:
        return [self.function, *self.args, *self.kwargs.values()]

    def rebuild(self, emitter: Emitter) -> str:
        make = emitter.inject(functools.partial, "partial")
        given = [emitter.rebuild(self.function), *map(emitter.rebuild, self.args)]
        given += [f"{name}={emitter.rebuild(value)}" for name, value in self.kwargs.items()]
        return f"{make}({', '.join(given)})"
