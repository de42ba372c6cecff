"""CPython 3.14: subscripts are a binary operator, ``with`` loads its methods one by one, small numbers and a few
builtins come without a constant, and annotations are a function that is called when they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.bytecode.interpreter import NULL, Frame, Signal
from bothways.capture.bytecode.opcodes import common, containers, exceptions, py313
from bothways.capture.bytecode.opcodes.common import break_with, no_operation
from bothways.capture.bytecode.opcodes.functions import call_unpacked
from bothways.capture.values.core import linked
from bothways.capture.values.core.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler, Instruction

SUBSCRIPT = common.BINARY_SYMBOLS.index("[]")

# What the operands of LOAD_COMMON_CONSTANT and LOAD_SPECIAL stand for.
COMMON_CONSTANTS = (AssertionError, NotImplementedError, tuple, all, any)
SPECIAL = ("__enter__", "__exit__", "__aenter__", "__aexit__")
REST_OF_ENTERING = 4  # SWAP, SWAP, LOAD_SPECIAL, CALL


# Constants.


def LOAD_SMALL_INT(frame: Frame, inst: Instruction) -> None:
    frame.push(ConstantValue(inst.arg))


def LOAD_COMMON_CONSTANT(frame: Frame, inst: Instruction) -> None:
    frame.push(linked.library_value(frame.tracer, COMMON_CONSTANTS[inst.arg]))


# Operators and calls.


def BINARY_OP(frame: Frame, inst: Instruction) -> None:
    (common.BINARY_SUBSCR if inst.arg == SUBSCRIPT else common.BINARY_OP)(frame, inst)


def CALL_FUNCTION_EX(frame: Frame, inst: Instruction) -> None:
    keywords, positional = frame.pop(), frame.pop()
    frame.pop()  # the NULL above the callable
    frame.push(call_unpacked(frame, frame.pop(), positional, None if keywords is NULL else keywords))


# Blocks of ``with``: the method that leaves it stands below, and NULL above that, since it is bound already. The
# compiler enters one by six instructions in a row, the manager twice on the stack; the first LOAD_SPECIAL does it all.


def LOAD_SPECIAL(frame: Frame, inst: Instruction) -> Signal | None:
    if SPECIAL[inst.arg] != "__exit__":
        return common.TABLE["BEFORE_ASYNC_WITH"](frame, inst)
    manager, _ = frame.pop_many(2)
    leave, entered = exceptions.enter_with(frame.tracer, manager.realize())
    frame.stack += leave, NULL, entered
    frame.jump(frame.index + REST_OF_ENTERING)
    return None


def WITH_EXCEPT_START(frame: Frame, inst: Instruction) -> None:
    exceptions.leave_with(frame, frame.stack[-5])


# Unpacking tells how many there are of what knows it.


def UNPACK_SEQUENCE(frame: Frame, inst: Instruction) -> None:
    containers.unpack_sequence(frame, inst.arg, counted=(list, tuple, dict))


_OWN: list[Handler] = [
    LOAD_SMALL_INT,
    LOAD_COMMON_CONSTANT,
    BINARY_OP,
    CALL_FUNCTION_EX,
    LOAD_SPECIAL,
    WITH_EXCEPT_START,
    UNPACK_SEQUENCE,
]

_templates = break_with("opcode_unknown", "a template string is made inside the function")

TABLE: dict[str, Handler] = {
    **py313.TABLE,
    **{handler.__name__: handler for handler in _OWN},
    "LOAD_FAST_BORROW": common.LOAD_FAST,
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": py313.LOAD_FAST_LOAD_FAST,
    "POP_ITER": common.POP_TOP,
    "NOT_TAKEN": no_operation,
    "BUILD_TEMPLATE": _templates,
    "BUILD_INTERPOLATION": _templates,
}
