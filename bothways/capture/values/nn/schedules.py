"""Schedules of learning rates inside of compiled functions: ``scheduler.step()`` is made when everything else is done.

A step of a schedule reads and writes numbers of its own and of its optimizer, by whatever Python it takes. Captured
code that does not ask for these afterwards need not know them: the call is an effect, the same program serves all of
the schedule, and the learning rate is what the next call finds. Where they are asked for, the capture begins anew and
looks into the schedule.
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.optim import lr_scheduler

from bothways.capture.calls import inline
from bothways.capture.guards.policy import is_library_module
from bothways.capture.standins.optimizers import as_it_is_now
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.collections.dicts import DictEntry, DictValue
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS, Handler
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.tensors.late_numbers import LateNumber
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.writing.effects import ReadTooEarly

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

# What of a group of parameters, and of a schedule, is no number of theirs.
UNTOUCHED = frozenset({"params", "optimizer"})


class PutOffValue(Value):
    """What a call leaves behind that was put off."""

    def realize(self) -> NoReturn:
        raise ReadTooEarly

    def python_type(self) -> NoReturn:
        raise ReadTooEarly

    def rebuild(self, emitter: Emitter) -> NoReturn:
        raise ReadTooEarly


class ScheduleStep(Value):
    """A step of a schedule, made after the graph has run."""

    def __init__(self, schedule: Value, args: list[Value]) -> None:
        self.schedule, self.args = schedule, args

    def parts(self) -> Iterable[Value]:
        return self.args

    def emit_effects(self, emitter: Emitter) -> None:
        emitter.effect(f"{emitter.rebuild(self.schedule)}.step({emitter.rebuild_all(self.args)})")


def _step(method: types.FunctionType) -> Handler:
    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        schedule = args[0].realize()
        if kwargs or not isinstance(schedule, ObjectValue) or not _can_wait(tracer, schedule, args[1:]):
            return inline(tracer, library_function(tracer, method), args, kwargs)
        told = [_as_it_is_now(tracer, arg.realize()) for arg in args[1:]]
        _put_off(tracer, schedule.obj)
        tracer.effects.mutated(ScheduleStep(schedule, told))
        return ConstantValue(None)

    return handler


HANDLERS.update({
    method: _step(method)
    for kind in vars(lr_scheduler).values()
    if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)
    if isinstance(method := vars(kind).get("step"), types.FunctionType)
})  # fmt: skip


def _as_it_is_now(tracer: Tracer, arg: Value) -> Value:
    return tracer.inline(as_it_is_now, [arg], {}).realize() if isinstance(arg, TensorValue) else arg


# When a step can wait.


def _can_wait(tracer: Tracer, schedule: ObjectValue, args: Args) -> bool:
    """Whether a step is the same when everything else is done, as far as its own Python tells."""
    if not tracer.options.postpones or schedule.source is None or schedule.mutated:
        return False
    is_told = isinstance(schedule.obj, lr_scheduler.ReduceLROnPlateau)
    wanted = (TensorValue, LateNumber, NumberValue, ConstantValue) if is_told else ()
    if not all(isinstance(arg.realize(), wanted) for arg in args):
        return False
    if any(frame.decoded.handler_for(frame.index - 1) is not None for frame in tracer.running.frames):
        return False  # an exception of it would be handled, or a ``finally`` would be run
    stored = {name for frame in tracer.running.frames for name in _stored_cells(frame.code)}
    return all(_is_of_library(one) and _calls_only_plain(one, stored) for one in _with_parts(schedule.obj))


def _with_parts(schedule: Any) -> Iterator[Any]:
    """A schedule and those that it is made of."""
    yield schedule
    for part in vars(schedule).get("_schedulers", ()):
        yield from _with_parts(part)


def _is_of_library(schedule: Any) -> bool:
    return is_library_module(type(schedule).__module__) and "step" not in vars(schedule)


def _calls_only_plain(schedule: Any, stored: set[str]) -> bool:
    """Whether the functions that a schedule was given compute with numbers and nothing else."""
    held: list[Any] = []
    for value in vars(schedule).values():
        held += value if isinstance(value, list) else [value]
    return all(_is_plain(one, stored) for one in held if callable(one) and not isinstance(one, torch.Tensor))


def _is_plain(function: Any, stored: set[str]) -> bool:
    if isinstance(function, functools.partial):
        numbers = [*function.args, *function.keywords.values()]
        return _is_plain(function.func, stored) and all(map(_is_number, numbers))
    if isinstance(function, types.MethodType):
        return _is_plain(function.__func__, stored) and isinstance(function.__self__, lr_scheduler.LRScheduler)
    if not isinstance(function, types.FunctionType):
        return isinstance(function, types.BuiltinFunctionType) and function.__module__ in ("math", "builtins")
    if is_library_module(function.__module__):
        return True
    names = function.__code__.co_names
    outside = [function.__globals__[name] for name in names if name in function.__globals__]
    unknown = [name for name in names if name not in function.__globals__ and not _is_attribute(name)]
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return (
        all(one is math or one is function or _is_plain(one, stored) for one in outside)
        and all(hasattr(builtins, name) for name in unknown)
        and all(name not in stored and _holds_number(cell) for name, cell in cells.items())
    )


def _is_attribute(name: str) -> bool:
    """Names of globals and of attributes stand together; those that are looked up in ``math`` are attributes."""
    return hasattr(math, name)


def _holds_number(cell: types.CellType) -> bool:
    try:
        return _is_number(cell.cell_contents)
    except ValueError:  # it is empty
        return False


def _is_number(value: object) -> bool:
    return value is None or type(value) in (int, float, bool, str)


@functools.lru_cache(256)
def _stored_cells(code: types.CodeType) -> frozenset[str]:
    """The variables of enclosing functions that a function, or one in it, gives other values."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inner = [_stored_cells(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset(own & set(code.co_freevars)).union(*inner)


# What the function may not ask for until then.


def _put_off(tracer: Tracer, schedule: Any) -> None:
    for one in _with_parts(schedule):
        known = tracer.known(one)
        if isinstance(known, ObjectValue):
            known.attrs |= {name: PutOffValue() for name in vars(one) if name not in UNTOUCHED}
        else:
            tracer.effects.put_off(one)
        for group in one.optimizer.param_groups:
            numbers = tracer.known(group)
            if not isinstance(numbers, DictValue):
                tracer.effects.put_off(group)
                continue
            for key, entry in numbers.entries.items():
                if not (isinstance(entry.key, ConstantValue) and entry.key.content in UNTOUCHED):
                    numbers.entries[key] = DictEntry(entry.key, PutOffValue())
