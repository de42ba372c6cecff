"""Exceptions of the captured program: made, raised and caught without leaving the capture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture import protocols
from bothways.capture.sources import Source
from bothways.capture.values.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.constants import ConstantValue, constant_value
from bothways.capture.values.objects import MISSING, ObjectValue

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.tracer import Tracer

# What BaseException keeps in C fields, with its value on a fresh instance.
_FIELDS: dict[str, Any] = {
    "__cause__": None,
    "__context__": None,
    "__traceback__": None,
    "__suppress_context__": False,
    "__notes__": MISSING,
}


class ExceptionValue(ObjectValue):
    """An exception instance the captured program made; ``args`` is what BaseException keeps."""

    def __init__(self, cls: type, args: Args, *, obj: object = MISSING, source: Source | None = None) -> None:
        super().__init__(cls, obj=obj, source=source)
        self.args = list(args)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.values.containers import TupleValue

        if name == "args":
            return TupleValue(list(self.args))
        if name in _FIELDS and name not in self.attrs and _FIELDS[name] is not MISSING:
            return ConstantValue(_FIELDS[name])
        if name == "value" and issubclass(self.cls, StopIteration) and name not in self.attrs:
            return self.args[0] if self.args else ConstantValue(None)
        return super().get_attr(tracer, name)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if name == "args":
            self.args = protocols.unpack(tracer, value)
        elif name in _FIELDS:
            self.attrs[name] = value
        else:
            super().set_attr(tracer, name, value)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__init__":
            if kwargs and issubclass(self.cls, (ImportError, AttributeError, NameError)):
                tracer.stop("call_unknown", f"{self.cls.__name__} is made with keywords")
            self.args = list(args)
            return ConstantValue(None)
        if name == "with_traceback":
            return self
        if name in ("__str__", "__repr__"):
            return ConstantValue(self._plain_text(tracer, "repr" if name == "__repr__" else "str"))
        return super().call_method(tracer, name, args, kwargs)

    def text(self, tracer: Tracer, conversion: str) -> str:
        for name in ("__repr__",) if conversion == "repr" else ("__str__",):
            result = self._special(tracer, name)
            if result is not None:
                return protocols.as_string(tracer, result)
        return self._plain_text(tracer, conversion)

    def _plain_text(self, tracer: Tracer, conversion: str) -> str:
        try:
            args = [arg.realize().constant() for arg in self.args]
        except NotConstant:
            tracer.stop("call_unknown", f"cannot make text of a {self.cls.__name__} that carries tensors")
        base = next(kind for kind in self.cls.__mro__ if kind.__module__ == "builtins")
        exception = base(*args) if not issubclass(base, UnicodeError) else Exception(*args)
        text = str(exception)
        if conversion != "repr":
            return text
        return self.cls.__name__ + repr(exception)[len(type(exception).__name__) :]

    def parts(self) -> Iterable[Value]:
        return [*super().parts(), *self.args]

    def rebuild_empty(self, emitter: Emitter) -> str:
        cls = emitter.inject(self.cls, self.cls.__qualname__)
        return f"{cls}.__new__({', '.join([cls, *map(emitter.rebuild, self.args)])})"


def new_exception(tracer: Tracer, kind: type[BaseException], args: Iterable[Any]) -> ExceptionValue:
    """An exception raised by an ordinary operation of the captured program."""
    values = []
    for arg in args:
        if isinstance(arg, Value):
            values.append(arg)
            continue
        try:
            values.append(constant_value(arg))
        except NotConstant:
            values.append(ConstantValue(str(arg)))
    made = ExceptionValue(kind, values)
    if tracer.handled is not None:
        made.attrs["__context__"] = tracer.handled
    return made
