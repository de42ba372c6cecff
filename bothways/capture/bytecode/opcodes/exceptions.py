"""Instructions for raising, catching and cleaning up, mostly the same in all versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.bytecode.interpreter import Frame, Handled
from bothways.capture.bytecode.opcodes.common import opcode
from bothways.capture.values.code.attributes import type_attribute
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.objects.exceptions import ExceptionValue, as_exception, catches
from bothways.runtime.continuations import ENTERING, not_a_manager

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Instruction
    from bothways.capture.tracer import Tracer

@opcode
def PUSH_EXC_INFO(frame: Frame, inst: Instruction) -> None:
    raised, running = frame.pop().realize(), frame.tracer.running
    if not isinstance(raised, ExceptionValue):
        frame.tracer.stop("object_unknown", f"{raised.describe()} is handled")
    frame.push(Handled(running.handling[-1], raised))
    frame.push(raised)
    running.handle(raised)


@opcode
def POP_EXCEPT(frame: Frame, inst: Instruction) -> None:
    handled = frame.pop()
    frame.tracer.running.handle(handled.before)
    # Where a handler is left by an exception that was a copy: what stays there is not handled any more.
    frame.stack[:] = [ConstantValue(None) if entry is handled else entry for entry in frame.stack]


@opcode
def CHECK_EXC_MATCH(frame: Frame, inst: Instruction) -> None:
    wanted = frame.pop()
    frame.push(ConstantValue(catches(frame.tracer, wanted, frame.stack[-1])))


@opcode
def RAISE_VARARGS(frame: Frame, inst: Instruction) -> None:
    tracer = frame.tracer
    if inst.arg == 0:
        handled = tracer.running.handled or tracer.outer_exception().realize()
        if not isinstance(handled, ExceptionValue):
            tracer.throw(RuntimeError, "No active exception to reraise")
        raise Raised(handled, again=True)
    cause = frame.pop().realize() if inst.arg == 2 else None
    raised = as_exception(tracer, frame.pop())
    if cause is not None and not is_none(cause):
        cause = _as_cause(tracer, cause)
    raised.chain(tracer, cause=cause, context=tracer.running.handled)
    raise Raised(raised)


def _as_cause(tracer: Tracer, cause: Value) -> Value:
    if not isinstance(cause, (ClassValue, ExceptionValue)):
        tracer.throw(TypeError, "exception causes must derive from BaseException")
    return as_exception(tracer, cause)


@opcode
def RERAISE(frame: Frame, inst: Instruction) -> None:
    raise Raised(frame.pop().realize(), again=True)


@opcode
def WITH_EXCEPT_START(frame: Frame, inst: Instruction) -> None:
    leave_with(frame, frame.stack[-4])


def leave_with(frame: Frame, leave: Value) -> None:
    """Tell the method that leaves a ``with`` block about the exception on top of the stack."""
    raised: Value = frame.stack[-1]
    traceback = protocols.get_attr(frame.tracer, raised, "__traceback__")
    kind = protocols.get_attr(frame.tracer, raised, "__class__")
    frame.push(protocols.call(frame.tracer, leave, [kind, raised, traceback]))


@opcode
def BEFORE_WITH(frame: Frame, inst: Instruction) -> None:
    leave, entered = enter_with(frame.tracer, frame.pop().realize())
    frame.push(leave)
    frame.push(entered)


def enter_with(tracer: Tracer, manager: Value) -> tuple[Value, Value]:
    """Begin a ``with`` block: the method that ends it, and what ``__enter__`` gave."""
    methods = {}
    for name in ENTERING:
        method = type_attribute(tracer, manager, name)
        if method is None:
            tracer.throw(TypeError, not_a_manager(manager.python_type(), name))
        methods[name] = method
    return methods["__exit__"], protocols.call(tracer, methods["__enter__"], [])


@opcode
def LOAD_ASSERTION_ERROR(frame: Frame, inst: Instruction) -> None:
    frame.push(linked.library_value(frame.tracer, AssertionError))
