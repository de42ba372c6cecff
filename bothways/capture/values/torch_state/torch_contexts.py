"""Torch's own context managers that change how operations behave: ``autocast`` and ``inference_mode``.

Entering and leaving one are two nodes of the graph, and capture itself works inside the context, so that the
fakes show what the operations will do. What capture entered it leaves again, also when it stops in between.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.guards.sources import Source
from bothways.capture.standins.contexts import decorate
from bothways.capture.values.code.functions import FunctionValue
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.objects.builtins import BoundBuiltin
from bothways.source_text import with_article

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


@dataclass(frozen=True)
class Context:
    """One of torch's context managers: its class, and entering and leaving it as two calls."""

    cls: type
    enter: Callable[..., Any]
    leave: Callable[[Any], None]


AUTOCAST = Context(torch.autocast, torch_compat.enter_autocast, torch_compat.exit_autocast)
INFERENCE = Context(torch.inference_mode, torch_compat.enter_inference_mode, torch_compat.exit_inference_mode)


class ContextValue(Value):
    """A context manager that captured code made, or one of the same kind from outside."""

    def __init__(self, context: Context, arguments: tuple[Any, ...], source: Source | None = None) -> None:
        self.context, self.arguments, self.source = context, arguments, source
        self._entered: list[tuple[Any, Any]] = []
        self.grad_outside: bool | None = None  # the grad mode that leaving it puts back, where it has one of its own

    def python_type(self) -> type:
        return self.context.cls

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__enter__":
            self.grad_outside = torch.is_grad_enabled() if self.context is INFERENCE else None
            entered = tracer.attempt(self.context.enter, *self.arguments)  # autocast looks at some arguments only here
            node = tracer.graph.statement(self.context.enter, self.arguments)
            self._entered.append((node, entered))
            tracer.torch_state.enter(self)
            return self
        if not self._entered:
            kind = with_article(self.context.cls.__name__)
            tracer.stop("context_manager", f"{kind} that was entered outside is left")
        node, entered = self._entered.pop()
        tracer.torch_state.leave(self)
        self.context.leave(entered)
        tracer.graph.statement(self.context.leave, (node,))
        return ConstantValue(False)

    def leave_in_graph(self, tracer: Tracer) -> None:
        """Close what is open where the graph ends, in the graph alone."""
        for node, _ in reversed(self._entered):
            tracer.graph.statement(self.context.leave, (node,))

    def name_hint(self) -> str:
        return "context"

    def rebuild(self, emitter: Emitter) -> str:
        if len(self._entered) > 1:
            return super().rebuild(emitter)
        cls = self.context.cls
        return f"{emitter.inject(cls, cls.__name__)}({', '.join(map(emitter.literal, self.arguments))})"

    def leave(self) -> None:
        """Undo what capture entered, when it stops inside."""
        while self._entered:
            self.context.leave(self._entered.pop()[1])

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """Used as a decorator."""
        function = args[0].realize()
        if not isinstance(function, FunctionValue) or function.code.co_flags & inspect.CO_GENERATOR:
            tracer.stop("call_unknown", f"a context manager decorates {function.describe()}")
        return tracer.inline(decorate, [self, function], {})


@handles(torch.autocast.__enter__, torch.inference_mode.__enter__)
def _enter(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """The method called through its class, as ``ExitStack`` does."""
    return args[0].realize().call_method(tracer, "__enter__", [], {})


@handles(torch.autocast.__exit__, torch.inference_mode.__exit__)
def _exit(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return args[0].realize().call_method(tracer, "__exit__", [*args[1:]], kwargs)


@handles(torch.autograd.profiler.record_function.__enter__)
def _enter_range(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return args[0]  # one that a decorator keeps; see ``UnnamedRange``


@handles(torch.autograd.profiler.record_function.__exit__)
def _exit_range(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return ConstantValue(None)


@handles(torch.autocast)
def _autocast(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    positional, keywords = constant_arguments(tracer, [*args], kwargs)
    tracer.attempt(torch.autocast, *positional, **keywords)  # which refuses some; the graph makes another one
    return _autocast_value(*positional, **keywords)


def _autocast_value(
    device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> ContextValue:
    if cache_enabled is None:
        cache_enabled = torch.is_autocast_cache_enabled()
    return ContextValue(AUTOCAST, (device_type, dtype, enabled, cache_enabled))


@handles(torch.cuda.amp.autocast)
def _cuda_autocast(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    positional, keywords = constant_arguments(tracer, [*args], kwargs)
    enabled = positional[0] if positional else keywords.get("enabled", True)
    return _autocast_value("cuda", keywords.get("dtype", torch.float16), enabled)


@handles(torch.inference_mode)
def _inference_mode(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    positional, keywords = constant_arguments(tracer, [*args], kwargs)
    mode = [*positional, *keywords.values()]
    if len(mode) > 1 or not all(isinstance(enabled, bool) for enabled in mode) or not keywords.keys() <= {"mode"}:
        tracer.stop("call_unknown", "inference_mode is called with something else than a mode")
    return ContextValue(INFERENCE, (all(mode),))


def external_autocast(tracer: Tracer, obj: torch.autocast, source: Source) -> Value:
    """An autocast object from outside: the one a decorated function keeps."""
    fields = ("device", "fast_dtype", "_enabled", "_cache_enabled")
    tracer.guard("type({s0}) is {c0}", source, torch.autocast)
    for field in fields:
        tracer.guard(f"{{s0}}.{field} == {{c0}}", source, getattr(obj, field))
    value = ContextValue(AUTOCAST, tuple(getattr(obj, field) for field in fields), source)
    tracer.remember(obj, value)
    return value
