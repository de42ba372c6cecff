"""Instructions of the ``match`` statement, the same in all versions.

What is a sequence, a mapping, or a class that matches itself is told by type flags, as CPython does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.interpreter import Frame
from bothways.capture.bytecode.opcodes.common import TABLE, opcode
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.type_checks import isinstance_of
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.objects.objects import ObjectValue

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler, Instruction
    from bothways.capture.tracer import Tracer

# Py_TPFLAGS_SEQUENCE, Py_TPFLAGS_MAPPING and _Py_TPFLAGS_MATCH_SELF.
SEQUENCE, MAPPING, MATCHES_ITSELF = 1 << 5, 1 << 6, 1 << 22


@opcode
def GET_LEN(frame: Frame, inst: Instruction) -> None:
    frame.push(ConstantValue(protocols.length(frame.tracer, frame.stack[-1])))


def has_flag(flag: int) -> Handler:
    def handler(frame: Frame, inst: Instruction) -> None:
        kind = frame.stack[-1].realize().python_type()
        frame.push(ConstantValue(bool(kind.__flags__ & flag)))

    return handler


TABLE["MATCH_SEQUENCE"] = has_flag(SEQUENCE)
TABLE["MATCH_MAPPING"] = has_flag(MAPPING)


@opcode
def MATCH_KEYS(frame: Frame, inst: Instruction) -> None:
    tracer, subject = frame.tracer, frame.stack[-2].realize()
    keys = protocols.unpack(tracer, frame.stack[-1])
    _reject_twice(tracer, [key.realize().hash_key(tracer) for key in keys])
    values = []
    for key in keys:
        value = _entry(tracer, subject, key.realize())
        if value is None:
            frame.push(ConstantValue(None))
            return
        values.append(value)
    frame.push(TupleValue(values))


def _reject_twice(tracer: Tracer, keys: list[Any]) -> None:
    for index, key in enumerate(keys):
        if key in keys[:index]:
            tracer.throw(ValueError, f"mapping pattern checks duplicate key ({key!r})")


def _entry(tracer: Tracer, mapping: Value, key: Value) -> Value | None:
    """What ``mapping.get(key)`` finds, or None."""
    if isinstance(mapping, DictValue):
        return mapping.get_item(tracer, key) if mapping.contains(tracer, key) else None
    nothing = ObjectValue(object)
    value = protocols.call_attr(tracer, mapping, "get", key, nothing).realize()
    return None if value is nothing else value


@opcode
def MATCH_CLASS(frame: Frame, inst: Instruction) -> None:
    names, pattern, subject = frame.pop(), frame.pop().realize(), frame.pop()
    tracer = frame.tracer
    if not isinstance(pattern, ClassValue):
        tracer.throw(TypeError, "called match pattern must be a class")
    if not isinstance_of(tracer, subject, pattern):
        frame.push(ConstantValue(None))
        return
    values: list[Value] = []
    positional, itself = _positional_names(tracer, pattern, inst.arg)
    if itself:
        values.append(subject)
    wanted = [*positional, *names.constant()]
    for index, name in enumerate(wanted):
        if name in wanted[:index]:
            shown = pattern.cls.__name__
            tracer.throw(TypeError, f"{shown}() got multiple sub-patterns for attribute {name!r}")
        attribute = protocols.try_get_attr(tracer, subject, name)
        if attribute is None:
            frame.push(ConstantValue(None))
            return
        values.append(attribute)
    frame.push(TupleValue(values))


def _positional_names(tracer: Tracer, pattern: Any, count: int) -> tuple[list[str], bool]:
    """The attributes that positional sub-patterns read, and whether the one there is reads the subject itself."""
    if not count:
        return [], False
    cls = pattern.cls
    declared = protocols.try_get_attr(tracer, pattern, "__match_args__")
    itself = declared is None and bool(cls.__flags__ & MATCHES_ITSELF)
    names: list[str] = []
    if declared is not None:
        kind = declared.realize().python_type()
        if kind is not tuple:
            shown = f"{cls.__name__}.__match_args__ must be a tuple (got {kind.__name__})"
            tracer.throw(TypeError, shown)
        names = [protocols.as_constant(tracer, name) for name in protocols.unpack(tracer, declared)]
    allowed = 1 if itself else len(names)
    if allowed < count:
        plural = "" if allowed == 1 else "s"
        shown = f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)"
        tracer.throw(TypeError, shown)
    for name in names[:count]:
        if not isinstance(name, str):
            shown = f"__match_args__ elements must be strings (got {type(name).__name__})"
            tracer.throw(TypeError, shown)
    return names[:count], itself
