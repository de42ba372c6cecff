"""Instructions that make functions and call them, and the parts of them that the versions share.

CPython 3.11 and 3.12 keep ``NULL, callable`` or ``method, self`` below the arguments; 3.13 and 3.14 keep
``callable, NULL`` or ``method, self``. Either way the call itself is done here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.bytecode.interpreter import NULL, Frame
from bothways.capture.bytecode.opcodes.common import opcode
from bothways.capture.bytecode.opcodes.containers import converted, growing, is_iterable
from bothways.capture.values.code.functions import FunctionValue
from bothways.capture.values.collections.dicts import DictValue, mapping_pairs
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.core.wording import name_in_c

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler, Instruction
    from bothways.capture.tracer import Tracer


# Calls.


def call_with_names(frame: Frame, function: Value, arguments: list[Value], names: tuple[str, ...]) -> Value:
    """A call whose last arguments are passed by keyword."""
    split = len(arguments) - len(names)
    keywords = dict(zip(names, arguments[split:], strict=True))
    return protocols.call(frame.tracer, function, arguments[:split], keywords)


def call_unpacked(frame: Frame, function: Value, positional: Value, keywords: Value | None) -> Value:
    """``function(*positional, **keywords)``."""
    tracer = frame.tracer
    named: dict[str, Value] = {}
    if keywords is not None:
        for key in protocols.unpack(tracer, keywords):
            name = protocols.as_constant(tracer, key)
            if not isinstance(name, str):
                tracer.throw(TypeError, "keywords must be strings")
            named[name] = keywords.realize().get_item(tracer, key.realize())
    kind = positional.realize().python_type()
    if not is_iterable(kind):
        name = shown(tracer, function)
        tracer.throw(TypeError, f"{name} argument after * must be an iterable, not {name_in_c(kind)}")
    return protocols.call(tracer, function, protocols.unpack(tracer, positional), named)


def shown(tracer: Tracer, function: Value) -> str:
    """A callable as CPython names it when the arguments do not fit."""
    name = protocols.try_get_attr(tracer, function, "__qualname__")
    if name is None:
        return protocols.text(tracer, function)
    text = protocols.as_string(tracer, name)
    module = protocols.try_get_attr(tracer, function, "__module__")
    home = None if module is None or is_none(module) else protocols.as_string(tracer, module)
    return f"{text}()" if home in (None, "builtins") else f"{home}.{text}()"


@opcode
def DICT_MERGE(frame: Frame, inst: Instruction) -> None:
    tracer, mapping = frame.tracer, frame.pop()
    target: DictValue = growing(frame, inst)
    function = frame.stack[-inst.arg - 2]
    if function is NULL:  # since 3.13 it stands above the callable
        function = frame.stack[-inst.arg - 3]
    if not hasattr(mapping.python_type(), "keys"):
        kind = name_in_c(mapping.python_type())
        message = f"{shown(tracer, function)} argument after ** must be a mapping, not {kind}"
        tracer.throw(TypeError, message)
    for key, value in mapping_pairs(tracer, mapping):
        if target.contains(tracer, key.realize()):
            name = protocols.as_string(tracer, key)
            message = f"{shown(tracer, function)} got multiple values for keyword argument {name!r}"
            tracer.throw(TypeError, message)
        target.set_item(tracer, key.realize(), value)


def KW_NAMES(frame: Frame, inst: Instruction) -> None:
    frame.keyword_names = frame.code.co_consts[inst.arg]


def CALL(frame: Frame, inst: Instruction) -> None:
    arguments = frame.pop_many(inst.arg)
    second, first = frame.pop(), frame.pop()
    function = second if first is NULL else first
    if first is not NULL:
        arguments.insert(0, second)
    names, frame.keyword_names = frame.keyword_names, ()
    frame.push(call_with_names(frame, function, arguments, names))


def CALL_FUNCTION_EX(frame: Frame, inst: Instruction) -> None:
    keywords = frame.pop() if inst.arg & 1 else None
    positional, function = frame.pop(), frame.pop()
    frame.pop()  # the NULL below
    frame.push(call_unpacked(frame, function, positional, keywords))


# Functions.

FUNCTION_ATTRIBUTES = {16: "annotate", 8: "closure", 4: "annotations", 2: "keyword_defaults", 1: "defaults"}


def make_function(frame: Frame) -> FunctionValue:
    """A new function from the code on the stack."""
    return FunctionValue(frame.pop().constant(), frame.globals, [], [], {})


def set_function_attribute(frame: Frame, function: FunctionValue, attribute: str, value: Value) -> None:
    """One of the things MAKE_FUNCTION and SET_FUNCTION_ATTRIBUTE attach."""
    tracer = frame.tracer
    if attribute in ("closure", "defaults"):
        setattr(function, attribute, protocols.unpack(tracer, value))
    elif attribute == "keyword_defaults":
        function.keyword_defaults = {
            str(key): item
            for key, item in value.realize().constant_items(tracer)  # type: ignore[attr-defined]
        }
    elif attribute == "annotate":
        function.annotate = value
    else:
        # The compiler gives names and annotations in turn.
        flat = protocols.unpack(tracer, value)
        function.annotations = DictValue.from_pairs(tracer, list(zip(flat[::2], flat[1::2], strict=True)))


def MAKE_FUNCTION(frame: Frame, inst: Instruction) -> None:
    function = make_function(frame)
    for bit, attribute in FUNCTION_ATTRIBUTES.items():
        if inst.arg & bit:
            set_function_attribute(frame, function, attribute, frame.pop())
    frame.push(function)


# Replacement fields of f-strings.


def FORMAT_VALUE(frame: Frame, inst: Instruction) -> None:
    spec = protocols.as_string(frame.tracer, frame.pop()) if inst.arg & 4 else ""
    value = converted(frame, frame.pop(), inst.arg & 3)
    frame.push(protocols.formatted(frame.tracer, value, spec))


# The rows of CPython 3.11 and 3.12.
TABLE: dict[str, Handler] = {
    handler.__name__: handler
    for handler in (KW_NAMES, CALL, CALL_FUNCTION_EX, MAKE_FUNCTION, FORMAT_VALUE)
}
