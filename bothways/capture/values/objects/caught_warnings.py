"""``warnings.catch_warnings`` and the filters that are changed inside of it.

Nothing is changed while capture goes on: what is filtered and said inside is kept in order, and done again by the
program when the graph has run. Changing the filters for good is left to plain Python.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothways.capture.values.collections.containers import ListValue
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments
from bothways.capture.values.core.handlers import HANDLERS, Handler, handles
from bothways.capture.values.core.methods import none
from bothways.capture.values.objects.builtins import BoundBuiltin
from bothways.runtime.caught_warnings import Reopened, Said, within_caught
from bothways.runtime.listening import Dropped

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

Filters = list[tuple[Any, Any, Any, Any, Any]]
ACTIONS = ("default", "error", "ignore", "always", "module", "once")


class CaughtWarnings(Value):
    """A ``catch_warnings`` that captured code made: its options, and what was filtered and said inside."""

    only_registers = True  # captured code never reads what it does
    leaves_settings_alone = True

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.said: list[Said] = []
        self.filters: Filters = []
        self._state = "made"

    @property
    def records(self) -> bool:
        return bool(self.options.get("record", False))

    def python_type(self) -> type:
        return warnings.catch_warnings

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        before, after = {"__enter__": ("made", "entered"), "__exit__": ("entered", "left")}[name]
        if self._state != before:
            tracer.stop("context_manager", f"a catch_warnings that is {self._state} is to be {after}")
        self._state = after
        outer = innermost(tracer, but=self)
        if name == "__enter__":
            self.filters = filters_in_force(tracer)
            if self.options.get("action") is not None:
                row = {field: value for field, value in self.options.items() if field not in ("append", "record")}
                _add(self.filters, _simple_row(**row), bool(self.options.get("append", False)))
            tracer.torch_state.enter(self)
            return ListValue([]) if self.records else none()
        tracer.torch_state.leave(self)
        if outer is not None:
            outer.said.append((within_caught, (self.options, self.said), {}))
        else:
            tracer.effects.mutated(self)
        return none()

    def leave_in_graph(self, tracer: Tracer) -> None:
        """The graph knows nothing of it; but what is recorded is a list that captured code may have."""
        if self.records:
            tracer.stop("context_manager", "the break is where warnings are recorded")

    def leave(self) -> None:
        """Capture has changed nothing."""

    def name_hint(self) -> str:
        return "caught"

    def rebuild(self, emitter: Emitter) -> str:
        if self._state == "left":
            return super().rebuild(emitter)
        if self._state == "made":
            options = ", ".join(f"{name}={emitter.literal(value)}" for name, value in self.options.items())
            return f"{emitter.inject(warnings.catch_warnings, 'catch_warnings')}({options})"
        return f"{emitter.inject(Reopened, 'Reopened')}({self._content(emitter)})"

    def emit_effects(self, emitter: Emitter) -> None:
        emitter.effect(f"{emitter.inject(within_caught, 'within_caught')}({self._content(emitter)})")

    def _content(self, emitter: Emitter) -> str:
        return f"{emitter.inject(self.options, 'options')}, {emitter.inject(tuple(self.said), 'said')}"


def innermost(tracer: Tracer, but: Value | None = None) -> CaughtWarnings | None:
    """The one that captured code is inside of."""
    for context in reversed(tracer.torch_state.open_contexts):
        if isinstance(context, CaughtWarnings) and context is not but:
            return context
    return None


def is_recorded(tracer: Tracer) -> bool:
    """Whether a warning would become an entry of a list."""
    contexts = tracer.torch_state.open_contexts
    return any(isinstance(context, CaughtWarnings) and context.records for context in contexts)


def filters_in_force(tracer: Tracer) -> Filters:
    """The filters as captured code has them here, without our own."""
    inside = innermost(tracer)
    filters: Any = warnings.filters if inside is None else inside.filters
    return [row for row in filters if row[2] is not Dropped]


def is_ignored(tracer: Tracer, category: type[Warning]) -> bool:
    """Whether filters of captured code's own ignore whatever warning of a category an operation gives."""
    inside = innermost(tracer)
    if inside is None:
        return False
    for action, message, kind, module, line in inside.filters:
        if issubclass(category, kind):
            return action == "ignore" and message is None and module is None and line == 0
    return False


def _add(filters: Filters, row: tuple[Any, Any, Any, Any, Any], append: bool) -> None:
    """As ``warnings`` does: a row that is put first is there once."""
    if append:
        filters.extend([] if row in filters else [row])
        return
    if row in filters:
        filters.remove(row)
    filters.insert(0, row)


def _simple_row(action: str, category: Any = Warning, lineno: int = 0) -> tuple[Any, Any, Any, Any, Any]:
    return _row(action, "", category, "", lineno)


def _row(action: str, message: str, category: Any, module: str, lineno: int) -> tuple[Any, Any, Any, Any, Any]:
    if action not in ACTIONS or not issubclass(category, Warning) or not isinstance(lineno, int) or lineno < 0:
        raise TypeError("no filter")
    patterns = re.compile(message, re.I) if message else None, re.compile(module) if module else None
    return action, patterns[0], category, patterns[1], lineno


def _simplefilter(action: str, category: Any = Warning, lineno: int = 0, append: bool = False) -> Callable[..., None]:
    row = _simple_row(action, category, lineno)
    return lambda filters: _add(filters, row, append)


def _filterwarnings(
    action: str, message: str = "", category: Any = Warning, module: str = "", lineno: int = 0, append: bool = False
) -> Callable[..., None]:
    row = _row(action, message, category, module, lineno)
    return lambda filters: _add(filters, row, append)


# What changes the filters -> what makes of its arguments a change of a list.
CHANGES: dict[Callable[..., Any], Callable[..., Callable[[Filters], None]]] = {
    warnings.simplefilter: _simplefilter,
    warnings.filterwarnings: _filterwarnings,
    warnings.resetwarnings: lambda: list.clear,
}


def _changes(function: Callable[..., Any]) -> Handler:
    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        inside = innermost(tracer)
        if inside is None:
            tracer.stop("call_unknown", f"warnings.{function.__name__} changes the filters for good")
        positional, keywords = constant_arguments(tracer, args, kwargs)
        try:
            change = CHANGES[function](*positional, **keywords)
        except (TypeError, re.error):
            tracer.stop("call_unknown", f"warnings.{function.__name__} refuses what it is given")
        change(inside.filters)
        inside.said.append((function, tuple(positional), keywords))
        return none()

    return handler


HANDLERS.update({function: _changes(function) for function in CHANGES})


@handles(warnings.catch_warnings)
def _catch_warnings(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if args:
        tracer.stop("call_unknown", "catch_warnings is called with what has to be named")
    _, options = constant_arguments(tracer, [], kwargs)
    if options.pop("module", None) is not None:
        tracer.stop("call_unknown", "warnings of another module than warnings are caught")
    known = {"action", "category", "lineno", "append", "record"}
    try:
        if options.get("action") is not None:
            _simplefilter(**{name: value for name, value in options.items() if name != "record"})
        elif not known.issuperset(options):
            raise TypeError("no option")
    except TypeError:
        tracer.stop("call_unknown", "catch_warnings refuses what it is given")
    return CaughtWarnings(options)


@handles(warnings.catch_warnings.__enter__)
def _enter(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """The method called through its class, as ``ExitStack`` does."""
    return _own(tracer, args).call_method(tracer, "__enter__", [], {})


@handles(warnings.catch_warnings.__exit__)
def _exit(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return _own(tracer, args).call_method(tracer, "__exit__", [*args[1:]], kwargs)


def _own(tracer: Tracer, args: tuple[Value, ...]) -> CaughtWarnings:
    context = args[0].realize() if args else ConstantValue(None)
    if not isinstance(context, CaughtWarnings):
        tracer.stop("context_manager", "a catch_warnings from outside is entered or left")
    return context
