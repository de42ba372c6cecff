"""CPython 3.12: comprehensions run in the frame of their function, ``super()`` has an instruction of its own.

Most rows also hold for 3.13, which starts from this table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.interpreter import NULL, Frame, Signal
from bothways.capture.bytecode.opcodes import common, containers, exceptions, functions, generators, patterns  # noqa: F401  they add rows
from bothways.capture.bytecode.opcodes.common import (
    break_with,
    load_constant,
    named,
    pop_jump_if,
    pop_jump_if_none,
    read_global,
    unknown_opcode,
)
from bothways.capture.values.code.classes import ClassValue, make_super
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.raised import Raised
from bothways.capture.writing.dropping import check_forgotten

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler, Instruction


# Local variables. An inlined comprehension puts its function's variables of the same names aside on the stack.


def LOAD_FAST_AND_CLEAR(frame: Frame, inst: Instruction) -> None:
    frame.push(frame.locals.pop(inst.argval, NULL))


def STORE_FAST(frame: Frame, inst: Instruction) -> None:
    store_local(frame, inst.argval, frame.pop())


def store_local(frame: Frame, name: str, value: Any) -> None:
    """Bind a variable, or unbind it when a comprehension puts back one that was unbound before."""
    check_forgotten(frame, name)
    if value is NULL:
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = named(value, name)


def RETURN_CONST(frame: Frame, inst: Instruction) -> Signal:
    frame.result = load_constant(frame, inst.argval)
    return Signal.RETURN


# Globals and attributes.


def LOAD_GLOBAL(frame: Frame, inst: Instruction) -> None:
    push_callable(frame, read_global(frame, inst.argval), bool(inst.arg & 1))


def LOAD_ATTR(frame: Frame, inst: Instruction) -> None:
    push_callable(frame, protocols.get_attr(frame.tracer, frame.pop(), inst.argval), bool(inst.arg & 1))


def LOAD_SUPER_ATTR(frame: Frame, inst: Instruction) -> None:
    push_callable(frame, super_attribute(frame, inst), bool(inst.arg & 1))


def push_callable(frame: Frame, value: Value, to_be_called: bool) -> None:
    """Push a value; with NULL beside it when a call follows."""
    if to_be_called:
        frame.push(NULL)
    frame.push(value)


def super_attribute(frame: Frame, inst: Instruction) -> Value:
    """``super().name`` and ``super(cls, owner).name``; a global called ``super`` may be anything."""
    owner, cls, function = frame.pop(), frame.pop(), frame.pop().realize()
    explicit = bool(inst.arg & 2)
    if isinstance(function, ClassValue) and function.cls is super:
        bound = make_super(frame.tracer, [cls, owner])
    else:
        bound = protocols.call(frame.tracer, function, [cls, owner] if explicit else [])
    return protocols.get_attr(frame.tracer, bound, inst.argval)


# Slices.


def pop_slice(frame: Frame) -> SliceValue:
    return SliceValue([*frame.pop_many(2), ConstantValue(None)])


def BINARY_SLICE(frame: Frame, inst: Instruction) -> None:
    key, container = pop_slice(frame), frame.pop()
    frame.push(container.realize().get_item(frame.tracer, key))


def STORE_SLICE(frame: Frame, inst: Instruction) -> None:
    key, container, value = pop_slice(frame), frame.pop(), frame.pop()
    container.realize().set_item(frame.tracer, key, value)


# Loops and delegation.


def FOR_ITER(frame: Frame, inst: Instruction) -> None:
    frame.enter_loop()
    element = protocols.next_or_none(frame.tracer, frame.stack[-1])
    if element is None:
        frame.pop()
        frame.jump(inst.target + 1)  # behind END_FOR, which only specialized loops run
    else:
        frame.push(element)


def END_FOR(frame: Frame, inst: Instruction) -> None:
    frame.pop_many(2)


def SEND(frame: Frame, inst: Instruction) -> None:
    value = frame.pop()
    yielded, result = generators.send(frame, frame.stack[-1], value)
    frame.push(result)
    if not yielded:
        frame.jump(inst.target)


def END_SEND(frame: Frame, inst: Instruction) -> None:
    del frame.stack[-2]


def CLEANUP_THROW(frame: Frame, inst: Instruction) -> None:
    """An exception left what was delegated to; StopIteration only means that it came to its end."""
    raised = frame.pop()
    if not issubclass(raised.cls, StopIteration):
        raise Raised(raised)
    frame.pop_many(2)
    frame.push(ConstantValue(None))
    frame.push(protocols.get_attr(frame.tracer, raised, "value"))


# Intrinsic functions, by the numbers the compiler gives them.


def stop_iteration_error(frame: Frame, inst: Instruction) -> None:
    raised = frame.pop()
    if issubclass(raised.cls, StopIteration):
        raised = linked.stop_iteration_error(frame.tracer, raised)
    frame.push(raised)


_type_parameters = break_with("opcode_unknown", "type parameters are made inside the function")

INTRINSICS_1: dict[int, Handler] = {
    1: common.TABLE["PRINT_EXPR"],
    2: common.TABLE["IMPORT_STAR"],
    3: stop_iteration_error,
    4: common.TABLE["ASYNC_GEN_WRAP"],
    5: common.UNARY_POSITIVE,
    6: containers.list_to_tuple,
    **dict.fromkeys(range(7, 12), _type_parameters),
}
INTRINSICS_2: dict[int, Handler] = {
    1: common.TABLE["PREP_RERAISE_STAR"],
    **dict.fromkeys(range(2, 6), _type_parameters),
}


def CALL_INTRINSIC_1(frame: Frame, inst: Instruction) -> Signal | None:
    return INTRINSICS_1.get(inst.arg, unknown_opcode)(frame, inst)


def CALL_INTRINSIC_2(frame: Frame, inst: Instruction) -> Signal | None:
    return INTRINSICS_2.get(inst.arg, unknown_opcode)(frame, inst)


_OWN: list[Handler] = [
    LOAD_FAST_AND_CLEAR,
    STORE_FAST,
    RETURN_CONST,
    LOAD_GLOBAL,
    LOAD_ATTR,
    LOAD_SUPER_ATTR,
    BINARY_SLICE,
    STORE_SLICE,
    FOR_ITER,
    END_FOR,
    SEND,
    END_SEND,
    CLEANUP_THROW,
    CALL_INTRINSIC_1,
    CALL_INTRINSIC_2,
]

TABLE: dict[str, Handler] = {
    **common.TABLE,
    **functions.TABLE,
    **{handler.__name__: handler for handler in _OWN},
    "LOAD_FAST_CHECK": common.LOAD_FAST,
    "POP_JUMP_IF_TRUE": pop_jump_if(True),
    "POP_JUMP_IF_FALSE": pop_jump_if(False),
    "POP_JUMP_IF_NONE": pop_jump_if_none(True),
    "POP_JUMP_IF_NOT_NONE": pop_jump_if_none(False),
}
