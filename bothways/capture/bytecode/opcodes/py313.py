"""CPython 3.13: NULL stands above the callable, truth is tested by TO_BOOL, two locals move at once.

Most rows also hold for 3.14, which starts from this table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.bytecode.interpreter import NULL, Frame
from bothways.capture.bytecode.opcodes import py312
from bothways.capture.bytecode.opcodes.common import branch_truth, read_global, read_local
from bothways.capture.bytecode.opcodes.containers import converted
from bothways.capture.bytecode.opcodes.functions import (
    FUNCTION_ATTRIBUTES,
    call_unpacked,
    call_with_names,
    make_function,
    set_function_attribute,
)
from bothways.capture.bytecode.opcodes.py312 import store_local, super_attribute
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler, Instruction

COERCE_TO_BOOL = 16  # the bit of COMPARE_OP's operand that asks for the truth of the result


# Local variables, two at a time.


def LOAD_FAST_LOAD_FAST(frame: Frame, inst: Instruction) -> None:
    for name in inst.argval:
        frame.push(read_local(frame, name))


def STORE_FAST_LOAD_FAST(frame: Frame, inst: Instruction) -> None:
    stored, loaded = inst.argval
    store_local(frame, stored, frame.pop())
    frame.push(read_local(frame, loaded))


def STORE_FAST_STORE_FAST(frame: Frame, inst: Instruction) -> None:
    for name in inst.argval:
        store_local(frame, name, frame.pop())


# Callables: the NULL, or the object a method is bound to, stands above.


def push_callable(frame: Frame, value: Value, to_be_called: bool) -> None:
    frame.push(value)
    if to_be_called:
        frame.push(NULL)


def LOAD_GLOBAL(frame: Frame, inst: Instruction) -> None:
    push_callable(frame, read_global(frame, inst.argval), bool(inst.arg & 1))


def LOAD_ATTR(frame: Frame, inst: Instruction) -> None:
    push_callable(frame, protocols.get_attr(frame.tracer, frame.pop(), inst.argval), bool(inst.arg & 1))


def LOAD_SUPER_ATTR(frame: Frame, inst: Instruction) -> None:
    push_callable(frame, super_attribute(frame, inst), bool(inst.arg & 1))


def CALL(frame: Frame, inst: Instruction) -> None:
    _call(frame, inst.arg, ())


def CALL_KW(frame: Frame, inst: Instruction) -> None:
    names: Value = frame.pop()
    _call(frame, inst.arg, names.constant())


def _call(frame: Frame, count: int, names: tuple[str, ...]) -> None:
    arguments = frame.pop_many(count)
    owner, function = frame.pop(), frame.pop()
    if owner is not NULL:
        arguments.insert(0, owner)
    frame.push(call_with_names(frame, function, arguments, names))


def CALL_FUNCTION_EX(frame: Frame, inst: Instruction) -> None:
    keywords = frame.pop() if inst.arg & 1 else None
    positional = frame.pop()
    frame.pop()  # the NULL above the callable
    frame.push(call_unpacked(frame, frame.pop(), positional, keywords))


def MAKE_FUNCTION(frame: Frame, inst: Instruction) -> None:
    frame.push(make_function(frame))


def SET_FUNCTION_ATTRIBUTE(frame: Frame, inst: Instruction) -> None:
    function, value = frame.pop(), frame.pop()
    set_function_attribute(frame, function, FUNCTION_ATTRIBUTES[inst.arg], value)
    frame.push(function)


# Truth.


def TO_BOOL(frame: Frame, inst: Instruction) -> None:
    frame.push(ConstantValue(branch_truth(frame, frame.pop(), frame.index)))


def COMPARE_OP(frame: Frame, inst: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(protocols.compare(frame.tracer, inst.argval, left, right))
    if inst.arg & COERCE_TO_BOOL:
        TO_BOOL(frame, inst)


# Loops.


def FOR_ITER(frame: Frame, inst: Instruction) -> None:
    frame.enter_loop()
    element = protocols.next_or_none(frame.tracer, frame.stack[-1])
    if element is None:
        frame.pop()
        frame.jump(inst.target + 2)  # behind END_FOR and POP_TOP (POP_ITER in 3.14), which only specialized loops run
    else:
        frame.push(element)


def END_FOR(frame: Frame, inst: Instruction) -> None:
    frame.pop()


# Replacement fields of f-strings.


def CONVERT_VALUE(frame: Frame, inst: Instruction) -> None:
    frame.push(converted(frame, frame.pop(), inst.arg))


def FORMAT_SIMPLE(frame: Frame, inst: Instruction) -> None:
    frame.push(protocols.formatted(frame.tracer, frame.pop(), ""))


def FORMAT_WITH_SPEC(frame: Frame, inst: Instruction) -> None:
    spec, value = protocols.as_string(frame.tracer, frame.pop()), frame.pop()
    frame.push(protocols.formatted(frame.tracer, value, spec))


_OWN: list[Handler] = [
    LOAD_FAST_LOAD_FAST,
    STORE_FAST_LOAD_FAST,
    STORE_FAST_STORE_FAST,
    LOAD_GLOBAL,
    LOAD_ATTR,
    LOAD_SUPER_ATTR,
    CALL,
    CALL_KW,
    CALL_FUNCTION_EX,
    MAKE_FUNCTION,
    SET_FUNCTION_ATTRIBUTE,
    TO_BOOL,
    COMPARE_OP,
    FOR_ITER,
    END_FOR,
    CONVERT_VALUE,
    FORMAT_SIMPLE,
    FORMAT_WITH_SPEC,
]

TABLE: dict[str, Handler] = {**py312.TABLE, **{handler.__name__: handler for handler in _OWN}}
