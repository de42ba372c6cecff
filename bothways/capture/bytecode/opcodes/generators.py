"""Instructions that suspend and delegate: generators and ``yield from``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.bytecode.interpreter import Frame, Signal
from bothways.capture.bytecode.opcodes.common import opcode
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.core.raised import Raised

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Instruction

AFTER_YIELD_FROM = 2  # what the low bits of RESUME's operand say


@opcode
def RETURN_GENERATOR(frame: Frame, inst: Instruction) -> None:
    # The generator Value already exists: it is what resumes this frame. CPython resumes it with a value on the
    # stack, which the following POP_TOP drops.
    frame.push(ConstantValue(None))


@opcode
def YIELD_VALUE(frame: Frame, inst: Instruction) -> Signal:
    frame.result = frame.pop()
    return Signal.YIELD


@opcode
def GET_YIELD_FROM_ITER(frame: Frame, inst: Instruction) -> None:
    frame.push(protocols.iterate(frame.tracer, frame.pop()))


def send(frame: Frame, iterator: Value, value: Value) -> tuple[bool, Value]:
    """Resume a delegate: (True, what it yielded) or (False, what it returned)."""
    iterator = iterator.realize()
    try:
        if isinstance(iterator, linked.GeneratorValue):
            return True, iterator.resume(frame.tracer, value)
        if not is_none(value):
            return True, protocols.call_attr(frame.tracer, iterator, "send", value)
        return True, iterator.next(frame.tracer)
    except Raised as error:
        if not issubclass(error.value.python_type(), StopIteration):
            raise
        return False, protocols.get_attr(frame.tracer, error.value, "value")


def delegate_of(frame: Frame) -> Value | None:
    """The iterator a suspended frame is yielding from."""
    following = frame.decoded.instructions[frame.index]
    if following.name == "RESUME" and following.arg & 3 == AFTER_YIELD_FROM:
        iterator: Value = frame.stack[-1]
        return iterator.realize()
    return None


def end_delegation(frame: Frame) -> None:
    """Continue a suspended frame behind its ``yield from``; CPython 3.11 has no instruction that does it."""
    frame.pop()
    loop = frame.decoded.instructions[frame.index + 1]  # the jump back to SEND
    frame.jump(frame.decoded.instructions[loop.target].target)
