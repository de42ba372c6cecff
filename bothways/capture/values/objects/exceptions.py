"""Exceptions of the captured program: made, raised and caught without leaving the capture.

Chaining (``__cause__``, ``__context__``) follows Python; of tracebacks only the places are known.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.sources import Source
from bothways.capture.values.code.attributes import C_FIELDS, MISSING, lookup
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.answers import answered
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.core.wording import name_in_c
from bothways.capture.values.objects.objects import ObjectValue
from bothways.runtime.continuations import made_traceback
from bothways.source_text import with_article

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter
    from bothways.errors import Position

# What BaseException keeps in C fields, with its value on a fresh instance.
_FIELDS: dict[str, Any] = {
    "__cause__": None,
    "__context__": None,
    "__traceback__": None,
    "__suppress_context__": False,
}


class TracebackValue(Value):
    """The traceback of an exception that was raised: the places it passed, innermost first.

    ``goes_on`` says that those lead to the traceback the exception had before.
    """

    def __init__(self, passed: tuple[Position, ...] = (), *, goes_on: bool = False) -> None:
        self.passed, self.goes_on = passed, goes_on

    def python_type(self) -> type:
        return types.TracebackType


class ExceptionValue(ObjectValue):
    """An exception instance the captured program made; ``args`` is what BaseException keeps."""

    def __init__(self, cls: type, args: Args, *, obj: object = MISSING, source: Source | None = None) -> None:
        super().__init__(cls, obj=obj, source=source)
        self.args = list(args)
        self.traceback: Value | None = None  # None until captured code raises it or stores one
        self.was_raised = False

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "args":
            return TupleValue(list(self.args))
        if name == "__traceback__" and self.traceback is not None:
            return self.traceback
        if name not in self.attrs and self.source is None:
            if name == "__context__" and self.was_raised:
                return tracer.outer_exception()
            if name in _FIELDS:
                return ConstantValue(_FIELDS[name])
            if any(name in fields for kind, fields in _EMPTY_FIELDS.items() if issubclass(self.cls, kind)):
                return ConstantValue(None)
            if name not in ("__class__", "__dict__") and isinstance(lookup(self._base(), name), C_FIELDS):
                tracer.stop("attribute_unknown", f"cannot read {name!r} of {self.describe()}")
        return super().get_attr(tracer, name)

    @property
    def raised_at(self) -> Position | None:
        """The innermost place it passed, however often it was raised again."""
        return next(iter(self.traceback.passed), None) if isinstance(self.traceback, TracebackValue) else None

    def note_raised(self, tracer: Tracer, where: Position) -> None:
        """Raising gives an exception a new traceback."""
        self.was_raised = True
        if isinstance(self.traceback, TracebackValue):
            passed, goes_on = self.traceback.passed, self.traceback.goes_on
        else:
            passed, goes_on = (), self.traceback is None and self.source is not None
        self._set_traceback(tracer, TracebackValue((*passed, where), goes_on=goes_on))

    def _set_traceback(self, tracer: Tracer, traceback: Value) -> None:
        self.traceback = traceback
        self.note_change(tracer)

    def _base(self) -> type:
        """The built-in exception class the exception is made by."""
        return next(kind for kind in self.cls.__mro__ if kind.__module__ == "builtins")

    def tell(self, tracer: Tracer, **fields: Value) -> None:
        """Remember what Python notes on an exception, unless another has been noted."""
        is_told = any(name in self.attrs for name in fields) or self.source is not None
        if not is_told and all(isinstance(lookup(self.cls, name), C_FIELDS) for name in fields):
            for name, value in fields.items():
                self._set_field(tracer, name, value)

    def keep(self, args: Args) -> None:
        """What the built-in ``__init__`` does with its arguments."""
        self.args = list(args)
        for kind, fields in _MADE_OF_ARGUMENTS.items():
            if issubclass(self.cls, kind):
                self.attrs.update((name, make(self.args)) for name, make in fields.items())

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if name == "args":
            if self.source is not None:
                tracer.stop("mutation_unknown", f"cannot set 'args' of {self.describe()}")
            self.args = protocols.unpack(tracer, value)
            return
        content = value.realize()
        if name in _REQUIRED and not (is_none(content) or isinstance(content, _REQUIRED[name][0])):
            tracer.throw(TypeError, _REQUIRED[name][1])
        if name == "__traceback__":
            self._set_traceback(tracer, content)
        elif name == "__cause__":
            self.chain(tracer, cause=content)
        else:
            super().set_attr(tracer, name, value)

    def del_attr(self, tracer: Tracer, name: str) -> None:
        if name == "args" or name in _FIELDS:
            tracer.throw(TypeError, f"{name} may not be deleted")
        super().del_attr(tracer, name)

    def chain(self, tracer: Tracer, *, cause: Value | None = None, context: ExceptionValue | None = None) -> None:
        """Remember what an exception was raised from, and while handling what."""
        if cause is not None:
            self._set_field(tracer, "__cause__", cause)
            self._set_field(tracer, "__suppress_context__", ConstantValue(True))
        if context is None or context is self:
            return
        # As in CPython, a context that already leads back here is cut, so that chains stay finite.
        link, seen = context, {id(context)}
        while isinstance(before := link.attrs.get("__context__"), ExceptionValue) and id(before) not in seen:
            if before is self:
                link._set_field(tracer, "__context__", ConstantValue(None))
                break
            link = before
            seen.add(id(link))
        self._set_field(tracer, "__context__", context)

    def _set_field(self, tracer: Tracer, name: str, value: Value) -> None:
        self.attrs[name] = value
        self.note_change(tracer)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__init__":
            return self._initialize(tracer, args, kwargs)
        if name == "with_traceback":
            self.set_attr(tracer, "__traceback__", args[0])
            return self
        if name == "add_note":
            return self._add_note(tracer, *args)
        if name in ("__str__", "__repr__"):
            return ConstantValue(self._plain_text(tracer, "repr" if name == "__repr__" else "str"))
        return super().call_method(tracer, name, args, kwargs)

    def _initialize(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """``__init__`` of the built-in class."""
        if kwargs and issubclass(self.cls, (ImportError, AttributeError, NameError)):
            tracer.stop("call_unknown", f"{self.cls.__name__} is made with keywords")
        if kwargs:
            tracer.throw(TypeError, f"{self.cls.__name__}() takes no keyword arguments")
        for kind, count in _LOOKS_AT_ARGUMENTS.items():
            if issubclass(self.cls, kind) and len(args) >= count:
                tracer.stop("call_unknown", f"{with_article(self.cls.__name__)} is made of {len(args)} arguments")
        self.keep(args)
        return ConstantValue(None)

    def _add_note(self, tracer: Tracer, note: Value) -> Value:
        kind = note.realize().python_type()
        if not issubclass(kind, str):
            tracer.throw(TypeError, f"note must be a str, not {name_in_c(kind)!r}")
        notes = protocols.try_get_attr(tracer, self, "__notes__")
        if notes is None:
            notes = ListValue([])
            self.set_attr(tracer, "__notes__", notes)
        if not issubclass(notes.python_type(), list):
            tracer.throw(TypeError, "Cannot add note: __notes__ is not a list")
        protocols.call_attr(tracer, notes, "append", note)
        return ConstantValue(None)

    def text(self, tracer: Tracer, conversion: str) -> str:
        for name in ("__repr__",) if conversion == "repr" else ("__str__",):
            result = self.special(tracer, name)
            if result is not None:
                return protocols.as_string(tracer, answered(tracer, self.cls, name, result))
        return self._plain_text(tracer, conversion)

    def _plain_text(self, tracer: Tracer, conversion: str) -> str:
        """What the C base class makes of the arguments."""
        base = self._base()
        if conversion == "repr" and lookup(base, "__repr__") is lookup(BaseException, "__repr__"):
            inner = ", ".join(protocols.text(tracer, arg, "repr") for arg in self.args)
            return f"{self.cls.__name__}({inner})"
        if lookup(base, "__str__") is lookup(BaseException, "__str__"):
            if not self.args:
                return ""
            alone = self.args[0] if len(self.args) == 1 else self.get_attr(tracer, "args")
            return protocols.text(tracer, alone)
        if base is KeyError and len(self.args) == 1:
            return protocols.text(tracer, self.args[0], "repr")
        try:
            args = [arg.realize().constant() for arg in self.args]
        except NotConstant as missing:
            tracer.stop("call_unknown", f"cannot make text of a {self.cls.__name__} that carries {missing}")
        exception = tracer.run_const(base, *args)
        return str(exception) if conversion == "str" else repr(exception)

    def parts(self) -> Iterable[Value]:
        return [*super().parts(), *self.args]

    def rebuild_empty(self, emitter: Emitter) -> str:
        cls, base = emitter.inject(self.cls, self.cls.__qualname__), self._base()
        make = emitter.inject(base, base.__qualname__)  # a __new__ of the user's has run already
        return f"{make}.__new__({', '.join([cls, *map(emitter.rebuild, self.args)])})"

    def fill(self, emitter: Emitter, name: str) -> None:
        super().fill(emitter, name)
        if self.source is None and self.was_raised and "__context__" not in self.attrs:
            emitter.build(f"{name}.__context__ = {emitter.inject(sys.exception, 'exception')}()")
        if self.source is None and isinstance(self.traceback, TracebackValue):
            emitter.build(self._write_traceback(emitter, name))

    def emit_effects(self, emitter: Emitter) -> None:
        super().emit_effects(emitter)
        if self.source is not None and self.traceback is not None:
            emitter.effect(self._write_traceback(emitter, emitter.read(self.source)))

    def _write_traceback(self, emitter: Emitter, name: str) -> str:
        if not isinstance(self.traceback, TracebackValue):
            return f"{name}.__traceback__ = None"
        passed = emitter.inject(self.traceback.passed, "passed")
        before = f", {name}.__traceback__" if self.traceback.goes_on else ""
        return f"{name}.__traceback__ = {emitter.inject(made_traceback, 'made_traceback')}({passed}{before})"


# Classes that make more of their arguments than to keep them, from this many on.
_LOOKS_AT_ARGUMENTS: dict[type, int] = {OSError: 2, SyntaxError: 2, UnicodeError: 2, BaseExceptionGroup: 0}

def _first(args: Args) -> Value:
    return args[0] if args else ConstantValue(None)


def _only(args: Args) -> Value:
    return args[0] if len(args) == 1 else ConstantValue(None)


def _fields_in_order(*names: str) -> dict[str, Callable[[Args], Value]]:
    return {name: lambda args, place=place: args[place] for place, name in enumerate(names)}  # type: ignore[misc]


# What built-in classes have in fields of their own after ``__init__``.
_OF_TEXTS = ("object", "start", "end", "reason")
_MADE_OF_ARGUMENTS: dict[type, dict[str, Callable[[Args], Value]]] = {
    StopIteration: {"value": _first},
    SystemExit: {"code": lambda args: TupleValue(list(args)) if len(args) > 1 else _first(args)},
    ImportError: {"msg": _only},
    SyntaxError: {"msg": _first},
    UnicodeEncodeError: _fields_in_order("encoding", *_OF_TEXTS),
    UnicodeDecodeError: _fields_in_order("encoding", *_OF_TEXTS),
    UnicodeTranslateError: _fields_in_order(*_OF_TEXTS),
}

# Fields that are None until something is put into them.
_EMPTY_FIELDS: dict[type, tuple[str, ...]] = {
    StopIteration: ("value",),
    SystemExit: ("code",),
    ImportError: ("msg", "name", "path"),
    SyntaxError: ("msg",),
    AttributeError: ("name", "obj"),
    NameError: ("name",),
}

# Fields that take None and one kind of object, and what Python says to any other.
_REQUIRED: dict[str, tuple[type[Value], str]] = {
    "__cause__": (ExceptionValue, "exception cause must be None or derive from BaseException"),
    "__context__": (ExceptionValue, "exception context must be None or derive from BaseException"),
    "__traceback__": (TracebackValue, "__traceback__ must be a traceback or None"),
}


def new_exception(
    tracer: Tracer, kind: type[BaseException], args: Iterable[Any], fields: Mapping[str, Any] | None = None
) -> ExceptionValue:
    """An exception raised by an ordinary operation of the captured program."""
    values = []
    for arg in args:
        if isinstance(arg, Value):
            values.append(arg)
            continue
        try:
            values.append(constant_value(arg, tracer))
        except NotConstant:
            values.append(ConstantValue(str(arg)))
    exception = ExceptionValue(kind, values)
    exception.keep(values)
    exception.tell(tracer, **{name: constant_value(told, tracer) for name, told in (fields or {}).items()})
    exception.chain(tracer, context=tracer.running.handled)
    return exception


def as_exception(
    tracer: Tracer,
    value: Value,
    args: Args | None = None,
    complaint: str = "exceptions must derive from BaseException",
) -> ExceptionValue:
    """``raise X`` makes an instance when X is a class; ``args`` are what ``throw`` gives for it."""
    value = value.realize()
    if isinstance(value, ClassValue) and issubclass(value.cls, BaseException):
        arguments = [arg.realize() for arg in args or ()]
        if arguments and issubclass(arguments[0].python_type(), value.cls):
            value = arguments[0]
        else:
            value = value.call(tracer, arguments, {}).realize()
    if not isinstance(value, ExceptionValue):
        tracer.throw(TypeError, complaint.format(name_in_c(value.python_type())))
    return value


def catches(tracer: Tracer, wanted: Value, raised: ExceptionValue) -> bool:
    """Whether ``except wanted`` catches an exception; subclass hooks have no say in it."""
    wanted = wanted.realize()
    choices = wanted.known_items() if isinstance(wanted, TupleValue) else [wanted]
    kinds = [choice.realize() for choice in choices]
    if not all(isinstance(kind, ClassValue) and issubclass(kind.cls, BaseException) for kind in kinds):
        message = "catching classes that do not inherit from BaseException is not allowed"
        tracer.throw(TypeError, message)
    return any(isinstance(kind, ClassValue) and kind.cls in raised.cls.__mro__ for kind in kinds)


@handles(sys.exc_info)
def _exc_info(tracer: Tracer) -> Value:
    handled = tracer.running.handled
    if handled is None:
        return TupleValue([ConstantValue(None)] * 3)
    names = ("__class__", "__traceback__")
    kind, traceback = (protocols.get_attr(tracer, handled, name) for name in names)
    return TupleValue([kind, handled, traceback])


@handles(sys.exception)
def _exception(tracer: Tracer) -> Value:
    return tracer.running.handled or ConstantValue(None)
