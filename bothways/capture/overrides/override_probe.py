"""Asks PyTorch whom a call would go to before it is done: its modes and subclasses, with which arguments.

The call is made with empty stand-ins in place of tensors while a mode of ours is the innermost one. That mode is told
what the innermost handler would be told, and raises, so nothing is computed and no code of the user's runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from bothways import torch_compat
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.core.numbers import NumberValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


class _Told(BaseException):
    """Carries what the mode was told out of the call; some of PyTorch's functions catch every TypeError."""

    def __init__(self, function: Any, types: tuple[type, ...], rest: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.types, self.rest = function, types, rest


class _Recorder(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, *rest: Any) -> Any:
        raise _Told(func, tuple(types), rest)


@dataclass(frozen=True)
class OverrideRequest:
    """What a handler is asked to do: the function, the classes that may want a say, and the call's arguments."""

    function: Value
    types: tuple[type, ...]
    rest: list[Value]  # the arguments as a tuple, and the keywords as a dictionary where there are any


class _StandIns:
    """Objects of the same classes for the Values of one call, and the way back."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._values: dict[int, Value] = {}
        self._kept: list[Any] = []

    def of(self, value: Value) -> Any:
        stand_in = self._make(value.realize())
        self._values[id(stand_in)] = value
        self._kept.append(stand_in)
        return stand_in

    def _make(self, value: Value) -> Any:
        if isinstance(value, linked.TensorValue):
            outline = torch.empty((0,) * len(value.fake.shape), dtype=value.fake.dtype, device="meta")
            return outline if value.cls is torch.Tensor else torch_compat.make_subclass(value.cls, outline)
        if isinstance(value, NumberValue):
            return value.content
        if isinstance(value, (ListValue, TupleValue)):
            items = [self.of(item) for item in value.known_items()]
            return items if isinstance(value, ListValue) else tuple(items)
        if isinstance(value, SliceValue):
            return slice(*map(self.of, value.bounds))
        if isinstance(value, DictValue):
            return {key: self.of(item) for key, item in value.constant_items(self._tracer)}
        try:
            return value.constant()
        except NotConstant:
            kind = value.python_type()
            return object.__new__(kind if hasattr(kind, "__torch_function__") else object)

    def value(self, obj: Any) -> Value:
        known = self._values.get(id(obj))
        if known is not None:
            return known
        if type(obj) is tuple:
            return TupleValue([self.value(item) for item in obj])
        if type(obj) is dict:
            pairs = [(self.value(key), self.value(item)) for key, item in obj.items()]
            return DictValue.from_pairs(self._tracer, pairs)
        return linked.library_value(self._tracer, obj)


def ask(tracer: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> OverrideRequest | None:
    """What the innermost handler of a call would be asked; None when none would be, or the call is refused."""
    stand_ins = _StandIns(tracer)
    positional = [stand_ins.of(arg) for arg in args]
    keywords = {name: stand_ins.of(arg) for name, arg in kwargs.items()}
    before = torch_compat.override_state()
    torch_compat.set_override_state(tracer.overrides.state)
    torch_compat.push_function_mode(_Recorder())
    try:
        function(*positional, **keywords)
    except _Told as seen:
        rest = [stand_ins.value(part) for part in seen.rest]
        return OverrideRequest(stand_ins.value(seen.function), seen.types, rest)
    except Exception as error:
        tracer.stop("torch_mode", f"{type(error).__name__} before a handler could override the call: {error}")
    finally:
        torch_compat.pop_function_mode()
        torch_compat.set_override_state(before)
    return None
