"""CPython 3.11: calls through PRECALL and KW_NAMES, methods through LOAD_METHOD, directed jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.bytecode.interpreter import NULL, Frame
from bothways.capture.bytecode.opcodes import common, containers, exceptions, functions, generators, patterns  # noqa: F401  they add rows
from bothways.capture.bytecode.opcodes.common import pop_jump_if, pop_jump_if_none, read_global
from bothways.capture.values.core import protocols

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler, Instruction


def LOAD_GLOBAL(frame: Frame, inst: Instruction) -> None:
    if inst.arg & 1:
        frame.push(NULL)
    frame.push(read_global(frame, inst.argval))


def LOAD_ATTR(frame: Frame, inst: Instruction) -> None:
    frame.push(protocols.get_attr(frame.tracer, frame.pop(), inst.argval))


def LOAD_METHOD(frame: Frame, inst: Instruction) -> None:
    # Pushing NULL and the bound method is one of the two shapes CPython itself may choose.
    owner = frame.pop()
    frame.push(NULL)
    frame.push(protocols.get_attr(frame.tracer, owner, inst.argval))


def FOR_ITER(frame: Frame, inst: Instruction) -> None:
    frame.enter_loop()
    element = protocols.next_or_none(frame.tracer, frame.stack[-1])
    if element is None:
        frame.pop()
        frame.jump(inst.target)
    else:
        frame.push(element)


def jump_or_pop(expected: bool) -> Handler:
    def handler(frame: Frame, inst: Instruction) -> None:
        if protocols.truth(frame.tracer, frame.stack[-1]) is expected:
            frame.jump(inst.target)
        else:
            frame.pop()

    return handler


def SEND(frame: Frame, inst: Instruction) -> None:
    value = frame.pop()
    yielded, result = generators.send(frame, frame.stack[-1], value)
    if yielded:
        frame.push(result)
    else:
        frame.stack[-1] = result
        frame.jump(inst.target)


_OWN = [LOAD_GLOBAL, LOAD_ATTR, LOAD_METHOD, FOR_ITER, SEND]

TABLE: dict[str, Handler] = {
    **common.TABLE,
    **functions.TABLE,
    **{handler.__name__: handler for handler in _OWN},
    **{
        f"POP_JUMP_{direction}_IF_{test}": handler
        for direction in ("FORWARD", "BACKWARD")
        for test, handler in {
            "TRUE": pop_jump_if(True),
            "FALSE": pop_jump_if(False),
            "NONE": pop_jump_if_none(True),
            "NOT_NONE": pop_jump_if_none(False),
        }.items()
    },
    "JUMP_IF_TRUE_OR_POP": jump_or_pop(True),
    "JUMP_IF_FALSE_OR_POP": jump_or_pop(False),
    "LIST_TO_TUPLE": containers.list_to_tuple,
    "LOAD_CLASSDEREF": common.LOAD_DEREF,
}
