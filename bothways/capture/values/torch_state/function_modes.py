"""PyTorch's functions about function modes: the stack of them, the switches, and the questions its functions ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.overrides

from bothways import torch_compat
from bothways.capture.overrides.override_probe import OverrideRequest
from bothways.capture.overrides.overrides import handle, has_handler
from bothways.capture.standins.overrides import default_torch_function
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS, Handler, handles
from bothways.capture.values.objects.builtins import BoundBuiltin
from bothways.source_text import with_article

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class SwitchValue(Value):
    """A context in which handlers of ``__torch_function__``, or modes as well, are not heeded."""

    leaves_settings_alone = True

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._before: list[Any] = []

    def python_type(self) -> type:
        kind: type = self._cls
        return kind

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        overrides = tracer.overrides
        if name == "__enter__":
            self._before.append(overrides.switch(torch_compat.OVERRIDE_SWITCHES[self._cls]))
            tracer.torch_state.enter(self)
        elif self._before:
            overrides.switch(self._before.pop())
            tracer.torch_state.leave(self)
        else:
            tracer.stop("context_manager", f"{with_article(self._cls.__name__)} that was entered outside is left")
        return ConstantValue(None)

    def leave(self) -> None:
        """Nothing was switched for real."""

    def leave_in_graph(self, tracer: Tracer) -> None:
        """Graphs run with everything switched off."""

    def rebuild(self, emitter: Emitter) -> str:
        if len(self._before) > 1:
            return super().rebuild(emitter)
        return f"{emitter.inject(self._cls, self._cls.__name__)}()"


def _switch(cls: Any) -> Handler:
    return lambda tracer, args, kwargs: SwitchValue(cls)


HANDLERS.update({cls: _switch(cls) for cls in torch_compat.OVERRIDE_SWITCHES})


# The stack of modes. The one that chooses a default device is kept apart, so the program may not count them.


def _stack(tracer: Tracer) -> list[Value]:
    if tracer.torch_state.default_devices:
        tracer.stop("torch_mode", "the stack of function modes is asked for while one chooses the default device")
    return tracer.overrides.modes


@handles(torch_compat.function_mode_depth)
def _depth(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return ConstantValue(len(_stack(tracer)))


@handles(torch_compat.function_mode_at)
def _mode_at(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    stack, place = _stack(tracer), protocols.as_index(tracer, args[0])
    if not 0 <= place < len(stack):
        tracer.stop("torch_mode", "a function mode is asked for that is not there")
    return stack[place]


@handles(torch_compat.push_function_mode)
def _push(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if not issubclass(args[0].realize().python_type(), torch.overrides.TorchFunctionMode):
        tracer.stop("torch_mode", "what is pushed is no function mode")
    tracer.overrides.enter(args[0])
    return ConstantValue(None)


@handles(torch_compat.pop_function_mode)
def _pop(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if not tracer.overrides.modes:
        tracer.stop("torch_mode", "Popping from an empty torch function mode stack")
    return tracer.overrides.leave()


# What PyTorch's functions in Python ask before they do anything, and whom they hand the call to.


def _may_override(tracer: Tracer, values: Args) -> Value:
    overrides = tracer.overrides
    enabled = overrides.state == torch_compat.OverrideState.ENABLED
    kinds = (value.realize().python_type() for value in values)
    return ConstantValue(overrides.heeds_modes or (enabled and any(map(has_handler, kinds))))


@handles(torch.overrides.has_torch_function)
def _has_torch_function(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return _may_override(tracer, protocols.unpack(tracer, args[0]))


@handles(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def _has_torch_function_variadic(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return _may_override(tracer, [*args])


@handles(torch.overrides.handle_torch_function)
def _handle_torch_function(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    function, relevant, *positional = args
    keywords = DictValue.from_pairs(tracer, [(ConstantValue(name), value) for name, value in kwargs.items()])
    kinds = [value.realize().python_type() for value in protocols.unpack(tracer, relevant)]
    return handle(tracer, OverrideRequest(function, _overloaded(kinds), [TupleValue(positional), keywords]))


def _overloaded(kinds: list[type]) -> tuple[type, ...]:
    """The classes that have a handler: each once, subclasses before the classes they extend, else as they come."""
    ordered: list[type] = []
    for kind in kinds:
        handler = getattr(kind, "__torch_function__", torch_compat.disabled_torch_function)
        if kind in ordered or handler is torch_compat.disabled_torch_function:
            continue
        place = next((index for index, other in enumerate(ordered) if issubclass(kind, other)), len(ordered))
        ordered.insert(place, kind)
    return tuple(ordered)


@handles(torch.overrides.resolve_name)
def _resolve_name(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return ConstantValue(tracer.run_const(torch.overrides.resolve_name, protocols.as_constant(tracer, args[0])))


@handles(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def _default_torch_function(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return tracer.inline(default_torch_function, [*args], kwargs)


@handles(torch_compat.gives_subclass)
def _gives_subclass(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    function = getattr(args[0].realize(), "function", None)  # what is no function of PyTorch's is none of the few
    return ConstantValue(torch_compat.gives_subclass(function))
