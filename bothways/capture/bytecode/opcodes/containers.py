"""Instructions that build, fill and unpack containers and strings, mostly the same in all versions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.interpreter import Frame
from bothways.capture.bytecode.opcodes.common import opcode
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.collections.sets import SetValue
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.core import linked, numpy_numbers, protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.capture.values.core.wording import name_in_c

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Instruction



@opcode
def BUILD_TUPLE(frame: Frame, inst: Instruction) -> None:
    frame.push(TupleValue(frame.pop_many(inst.arg)))


@opcode
def BUILD_LIST(frame: Frame, inst: Instruction) -> None:
    frame.push(ListValue(frame.pop_many(inst.arg)))


@opcode
def BUILD_SET(frame: Frame, inst: Instruction) -> None:
    frame.push(SetValue.of(frame.tracer, frame.pop_many(inst.arg), set))


@opcode
def BUILD_MAP(frame: Frame, inst: Instruction) -> None:
    flat = frame.pop_many(inst.arg * 2)
    frame.push(DictValue.from_pairs(frame.tracer, list(zip(flat[::2], flat[1::2], strict=True))))


@opcode
def BUILD_CONST_KEY_MAP(frame: Frame, inst: Instruction) -> None:
    keys = frame.pop().constant()
    values = frame.pop_many(inst.arg)
    pairs = [(constant_value(key, frame.tracer), value) for key, value in zip(keys, values, strict=True)]
    frame.push(DictValue.from_pairs(frame.tracer, pairs))


@opcode
def BUILD_SLICE(frame: Frame, inst: Instruction) -> None:
    parts = frame.pop_many(inst.arg)
    frame.push(SliceValue([*parts, ConstantValue(None)][:3]))


@opcode
def BUILD_STRING(frame: Frame, inst: Instruction) -> None:
    parts = frame.pop_many(inst.arg)
    if any(isinstance(part, linked.LateText) for part in parts):
        frame.push(linked.joined(frame.tracer, parts))
    else:
        frame.push(ConstantValue("".join(part.constant() for part in parts)))


def converted(frame: Frame, value: Value, conversion: int) -> Value:
    """The ``!s``, ``!r`` or ``!a`` of a replacement field."""
    if conversion == 0:
        return value
    if conversion != 3:
        return protocols.shown(frame.tracer, value, "str" if conversion == 1 else "repr")
    text = protocols.text(frame.tracer, value, "repr")
    return ConstantValue(text.encode("ascii", "backslashreplace").decode("ascii"))


def growing(frame: Frame, inst: Instruction) -> Any:
    """The container on the stack that a display or a comprehension fills."""
    container = frame.stack[-inst.arg].realize()
    if container.source is not None and not isinstance(container, ListValue):
        frame.tracer.stop("loop_state", "what a comprehension has collected before a break is not looked at")
    return container


@opcode
def LIST_APPEND(frame: Frame, inst: Instruction) -> None:
    item = frame.pop()
    growing(frame, inst).append_item(frame.tracer, item)


@opcode
def SET_ADD(frame: Frame, inst: Instruction) -> None:
    item = frame.pop()
    growing(frame, inst).add_item(frame.tracer, item)


@opcode
def MAP_ADD(frame: Frame, inst: Instruction) -> None:
    value, key = frame.pop(), frame.pop()
    growing(frame, inst).set_item(frame.tracer, key.realize(), value)


def is_iterable(kind: type) -> bool:
    """Whether ``iter`` takes objects of a type."""
    return hasattr(kind, "__iter__") or (hasattr(kind, "__getitem__") and kind not in numpy_numbers.SCALARS)


@opcode
def LIST_EXTEND(frame: Frame, inst: Instruction) -> None:
    iterable = frame.pop()
    kind = iterable.python_type()
    if not is_iterable(kind):
        frame.tracer.throw(TypeError, f"Value after * must be an iterable, not {name_in_c(kind)}")
    growing(frame, inst).extend_with(frame.tracer, iterable)


@opcode
def SET_UPDATE(frame: Frame, inst: Instruction) -> None:
    iterable = frame.pop()
    target: SetValue = growing(frame, inst)
    for item in protocols.unpack(frame.tracer, iterable):
        target.add_item(frame.tracer, item)


@opcode
def DICT_UPDATE(frame: Frame, inst: Instruction) -> None:
    mapping = frame.pop()
    growing(frame, inst).merge(frame.tracer, mapping)


@opcode
def UNPACK_SEQUENCE(frame: Frame, inst: Instruction) -> None:
    unpack_sequence(frame, inst.arg)


def unpack_sequence(frame: Frame, expected: int, counted: tuple[type, ...] = ()) -> None:
    """Push so many items; of too many in a container of the ``counted`` types Python says how many there are."""
    container = frame.pop()
    items = _unpacked(frame, container, expected + 1)  # Python asks for one more, and an iterator keeps the others
    if len(items) < expected:
        frame.tracer.throw(ValueError, f"not enough values to unpack (expected {expected}, got {len(items)})")
    if len(items) > expected:
        count = f", got {protocols.length(frame.tracer, container)}" if container.python_type() in counted else ""
        frame.tracer.throw(ValueError, f"too many values to unpack (expected {expected}{count})")
    frame.stack.extend(reversed(items))


def _unpacked(frame: Frame, value: Value, most: int | None = None) -> list[Value]:
    """The items of what is unpacked, or so many of them at most."""
    kind = value.python_type()
    if not is_iterable(kind):
        frame.tracer.throw(TypeError, f"cannot unpack non-iterable {name_in_c(kind)} object")
    return list(itertools.islice(protocols.elements(frame.tracer, protocols.iterate(frame.tracer, value)), most))


@opcode
def UNPACK_EX(frame: Frame, inst: Instruction) -> None:
    before, after = inst.arg & 0xFF, inst.arg >> 8
    items = _unpacked(frame, frame.pop())
    if len(items) < before + after:
        frame.tracer.throw(
            ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    middle = items[before : len(items) - after]
    frame.stack.extend(reversed([*items[:before], ListValue(middle), *items[len(items) - after :]]))


def list_to_tuple(frame: Frame, inst: Instruction) -> None:
    frame.push(TupleValue(protocols.unpack(frame.tracer, frame.pop())))
