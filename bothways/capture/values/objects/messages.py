"""What a program says to people: loggers and ``warnings.warn``.

A message of constants is an effect: it is logged, or warned about, after the graph has run, as coming from the line
that says it. One that is logged may hold numbers that are read from tensors, and text made of them. A message that the
logger drops costs the question whether it still would.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.sources import Source
from bothways.capture.values.code.attributes import lookup
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.methods import is_none, none
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.objects.caught_warnings import Filters, filters_in_force, innermost, is_recorded
from bothways.capture.values.objects.objects import ObjectValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

LEVELS: dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
_CACHED = type(functools.lru_cache(len))


class Message(Value):
    """A call that tells people something, made when everything else is done."""

    only_registers = True  # captured code never reads it

    def __init__(self, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        self.say, self.args, self.kwargs = call, args, kwargs

    def parts(self) -> Iterable[Value]:
        return [arg for arg in self.args if isinstance(arg, Value)]

    def emit_effects(self, emitter: Emitter) -> None:
        arguments = [emitter.rebuild(arg) if isinstance(arg, Value) else emitter.literal(arg) for arg in self.args]
        arguments += [f"{name}={emitter.literal(arg)}" for name, arg in self.kwargs.items()]
        emitter.effect(f"{emitter.inject(self.say, self.say.__name__)}({', '.join(arguments)})")


# What makes a record, and hands it on.
_HOW_IT_LOGS = ("_log", "findCaller", "makeRecord", "handle")

_OF_LOGGERS: dict[str, Any] = {name: lookup(logging.Logger, name) for name in (*LEVELS, "log", "isEnabledFor")}


class LoggerValue(ObjectValue):
    """A logger, known by identity: loggers live as long as the process."""

    @classmethod
    def external(cls, tracer: Tracer, logger: logging.Logger, source: Source) -> LoggerValue:
        tracer.guard("{s0} is {c0}", source, logger)
        tracer.definitions.meet(type(logger))
        value = cls(type(logger), obj=logger, source=source)
        tracer.remember(logger, value)
        return value

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        own = lookup(self.cls, name)
        says = name in LEVELS or name in ("log", "isEnabledFor")
        if (says and own is _OF_LOGGERS[name]) or isinstance(own, _CACHED):
            return LoggerMethod(self, name)
        return super().get_attr(tracer, name)


class LoggerMethod(Value):
    """A method that logs a message, or, where the method is cached, logs it once."""

    def __init__(self, owner: LoggerValue, name: str) -> None:
        self.owner, self.name = owner, name

    def python_type(self) -> type:
        return type(self._method())

    def describe(self) -> str:
        return f"the method {self.name!r} of a logger"

    def _method(self) -> Any:
        return getattr(self.owner.obj, self.name)

    def parts(self) -> Iterable[Value]:
        return (self.owner,)

    def name_hint(self) -> str:
        return self.name

    def rebuild(self, emitter: Emitter) -> str:
        return f"{emitter.rebuild(self.owner)}.{self.name}"

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        logger = self.owner.obj
        assert isinstance(logger, logging.Logger)
        if self.name in ("log", "isEnabledFor") and args:
            level, args = args[0].realize(), args[1:] if self.name == "log" else []
            number = level.constant()
        else:
            number = LEVELS.get(self.name)
        if isinstance(number, int):
            enabled = logger.isEnabledFor(number)
            assert self.owner.source is not None
            check = "{s0}.isEnabledFor({c0})" if enabled else "not {s0}.isEnabledFor({c0})"
            tracer.guard(check, self.owner.source, number)
            if self.name == "isEnabledFor":
                return ConstantValue(enabled)
            if not enabled:
                return none()
        values = [arg.realize() for arg in args]
        if not all(_is_late(arg) or arg.is_constant for arg in values) or "exc_info" in kwargs:
            tracer.stop("call_unknown", "a message is logged whose parts are not constants")
        _, keywords = constant_arguments(tracer, [], kwargs)
        tracer.effects.mutated(self._message(tracer, number, values, keywords))
        return none()

    def _message(self, tracer: Tracer, level: Any, args: list[Value], kwargs: dict[str, Any]) -> Message:
        logger = self.owner.obj
        names, depth = (self.name, *_HOW_IT_LOGS), kwargs.get("stacklevel", 1)
        is_usual = all(lookup(type(logger), name) is lookup(logging.Logger, name) for name in names)
        is_placed = type(depth) is int and 0 < depth <= len(tracer.running.frames)
        if not (args and is_usual and is_placed and type(level) is int and {"extra", "stacklevel"} >= set(kwargs)):
            return Message(self._method(), [level, *args] if self.name == "log" else list(args), kwargs)
        frame = tracer.running.frames[-depth]
        where = frame.position()
        said = (where.filename, where.line, frame.code.co_name, kwargs.get("extra"))
        return Message(_log_from, [self.owner, level, *said, *args], {})


@handles(warnings.warn)
def _warn(
    tracer: Tracer,
    message: Value,
    category: Value | None = None,
    stacklevel: Value | None = None,
    source: Value | None = None,
) -> Value:
    if not all(value is None or value.is_constant for value in (message, category, stacklevel, source)):
        tracer.stop("call_unknown", "a warning is given whose parts are not constants")
    text, level = message.constant(), 1 if stacklevel is None else stacklevel.constant()
    kind = UserWarning if category is None or is_none(category) else category.constant()
    if not isinstance(text, str) or (source is not None and not is_none(source)) or level > len(tracer.running.frames):
        tracer.stop("call_unknown", "a warning is given that is not about a line of the compiled function")
    frame = tracer.running.frames[-max(level, 1)]
    where = frame.position()
    module = frame.globals.get("__name__", "<string>")
    if _would_raise(filters_in_force(tracer), text, kind, module, where.line):
        tracer.stop("call_unknown", "a warning is given that is an error")
    if is_recorded(tracer):
        tracer.stop("call_unknown", "a warning is given that is recorded")
    said = [frame.globals, text, kind, where.filename, where.line, module]
    inside = innermost(tracer)
    if inside is None:
        tracer.effects.mutated(Message(_warn_from, said, {}))
    else:
        inside.said.append((_warn_from, tuple(said), {}))
    return none()


def _is_late(value: Value) -> bool:
    """Whether it may be logged before it is known."""
    return isinstance(value, (linked.LateNumber, linked.LateText, NumberValue))


def _log_from(
    logger: logging.Logger, level: int, filename: str, line: int, function: str, extra: Any, text: Any, *args: Any
) -> None:
    """``logger.log`` as the line itself would: the record says where it comes from."""
    logger.handle(logger.makeRecord(logger.name, level, filename, line, text, args, None, function, extra))


def _would_raise(filters: Filters, text: str, kind: type[Warning], module: str, line: int) -> bool:
    """What the filters make of a warning: the first that fits says it."""
    for action, pattern, category, module_pattern, line_wanted in filters:
        placed = _fits(module_pattern, module) and line_wanted in (0, line)
        if _fits(pattern, text) and placed and issubclass(kind, category):
            return action == "error"
    return False


def _fits(pattern: Any, text: str) -> bool:
    """Whether a filter is about a text: Python's own filters have the text itself in the place of a pattern."""
    return pattern is None or (pattern == text if isinstance(pattern, str) else bool(pattern.match(text)))


def _warn_from(
    globals_: dict[str, Any], text: str, kind: type[Warning], filename: str, line: int, module: str
) -> None:
    """``warnings.warn`` as the line itself would: what was warned about before is remembered by its module."""
    registry = globals_.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, kind, filename, line, module, registry)
