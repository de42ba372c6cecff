"""Instructions for raising, catching and cleaning up, the same in CPython 3.11, 3.12 and 3.13."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture import protocols
from bothways.capture.interpreter import Frame
from bothways.capture.opcodes.common import opcode
from bothways.capture.tracer import Observed
from bothways.capture.values.base import Value
from bothways.capture.values.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.instructions import Instruction

NONE = ConstantValue(None)


@opcode
def PUSH_EXC_INFO(frame: Frame, inst: Instruction) -> None:
    raised = frame.pop()
    frame.push(frame.tracer.handled or NONE)
    frame.push(raised)
    frame.tracer.handled = raised


@opcode
def POP_EXCEPT(frame: Frame, inst: Instruction) -> None:
    previous = frame.pop()
    frame.tracer.handled = None if previous is NONE else previous


@opcode
def CHECK_EXC_MATCH(frame: Frame, inst: Instruction) -> None:
    from bothways.capture.values.builtins import isinstance_of

    wanted = frame.pop()
    frame.push(ConstantValue(isinstance_of(frame.tracer, frame.stack[-1], wanted)))


@opcode
def RAISE_VARARGS(frame: Frame, inst: Instruction) -> None:
    tracer = frame.tracer
    if inst.arg == 0:
        if tracer.handled is None:
            tracer.throw(RuntimeError, "No active exception to reraise")
        raise Observed(tracer.handled)
    cause = frame.pop() if inst.arg == 2 else None
    raised = as_exception(frame, frame.pop())
    if cause is not None:
        cause = cause.realize()
        is_none = isinstance(cause, ConstantValue) and cause.content is None
        raised.set_attr(tracer, "__cause__", cause if is_none else as_exception(frame, cause))
        raised.set_attr(tracer, "__suppress_context__", ConstantValue(True))
    if tracer.handled is not None and tracer.handled is not raised:
        raised.set_attr(tracer, "__context__", tracer.handled)
    raise Observed(raised)


def as_exception(frame: Frame, value: Value) -> Value:
    """``raise X`` makes an instance when X is a class."""
    from bothways.capture.values.classes import ClassValue

    value = value.realize()
    if isinstance(value, ClassValue) and issubclass(value.cls, BaseException):
        value = value.call(frame.tracer, [], {})
    if not issubclass(value.python_type(), BaseException):
        frame.tracer.throw(TypeError, "exceptions must derive from BaseException")
    return value


@opcode
def RERAISE(frame: Frame, inst: Instruction) -> None:
    raise Observed(frame.pop())


@opcode
def WITH_EXCEPT_START(frame: Frame, inst: Instruction) -> None:
    raised: Value = frame.stack[-1]
    leave = frame.stack[-4]
    traceback = protocols.get_attr(frame.tracer, raised, "__traceback__")
    kind = protocols.get_attr(frame.tracer, raised, "__class__")
    frame.push(protocols.call(frame.tracer, leave, [kind, raised, traceback]))


@opcode
def BEFORE_WITH(frame: Frame, inst: Instruction) -> None:
    from bothways.capture.values.objects import type_attribute

    tracer, manager = frame.tracer, frame.pop().realize()
    enter = type_attribute(tracer, manager, "__enter__")
    leave = type_attribute(tracer, manager, "__exit__")
    if enter is None or leave is None:
        missing = "" if enter is None else " (missed __exit__ method)"
        tracer.throw(
            TypeError,
            f"{manager.python_type().__name__!r} object does not support the context manager protocol{missing}",
        )
    frame.push(leave)
    frame.push(protocols.call(tracer, enter, []))


@opcode
def LOAD_ASSERTION_ERROR(frame: Frame, inst: Instruction) -> None:
    from bothways.capture.wrap import library_value

    frame.push(library_value(frame.tracer, AssertionError))
