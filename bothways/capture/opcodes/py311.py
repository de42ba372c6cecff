"""CPython 3.11: calls through PRECALL and KW_NAMES, methods through LOAD_METHOD, directed jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture import protocols
from bothways.capture.interpreter import NULL, Frame
from bothways.capture.opcodes import common, exceptions, generators  # noqa: F401  (exceptions registers its rows)
from bothways.capture.opcodes.common import converted, make_function, pop_jump_if, pop_jump_if_none, read_global
from bothways.capture.values.base import Value
from bothways.capture.values.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.instructions import Handler, Instruction


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


def call_with_names(frame: Frame, function: Value, arguments: list[Value], names: tuple[str, ...]) -> Value:
    """A call whose last arguments are passed by keyword."""
    split = len(arguments) - len(names)
    keywords = dict(zip(names, arguments[split:], strict=True))
    return protocols.call(frame.tracer, function, arguments[:split], keywords)


def CALL_FUNCTION_EX(frame: Frame, inst: Instruction) -> None:
    keywords = frame.pop() if inst.arg & 1 else None
    positional, function = frame.pop(), frame.pop()
    frame.pop()  # the NULL below
    frame.push(call_unpacked(frame, function, positional, keywords))


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
    return protocols.call(tracer, function, protocols.unpack(tracer, positional), named)


def MAKE_FUNCTION(frame: Frame, inst: Instruction) -> None:
    function = make_function(frame, frame.pop().constant())
    for bit, attribute in FUNCTION_ATTRIBUTES:
        if inst.arg & bit:
            set_function_attribute(frame, function, attribute, frame.pop())
    frame.push(function)


FUNCTION_ATTRIBUTES = ((8, "closure"), (4, "annotations"), (2, "keyword_defaults"), (1, "defaults"))


def set_function_attribute(frame: Frame, function: common.FunctionValue, attribute: str, value: Value) -> None:
    """One of the four things MAKE_FUNCTION and SET_FUNCTION_ATTRIBUTE attach."""
    tracer = frame.tracer
    if attribute in ("closure", "defaults"):
        setattr(function, attribute, protocols.unpack(tracer, value))
    elif attribute == "keyword_defaults":
        function.keyword_defaults = {
            str(key): item
            for key, item in value.realize().constant_items(tracer)  # type: ignore[attr-defined]
        }
    else:
        function.annotations = value


def FORMAT_VALUE(frame: Frame, inst: Instruction) -> None:
    spec = protocols.as_string(frame.tracer, frame.pop()) if inst.arg & 4 else ""
    value = converted(frame, frame.pop(), inst.arg & 3)
    frame.push(ConstantValue(protocols.format_value(frame.tracer, value, spec)))


def FOR_ITER(frame: Frame, inst: Instruction) -> None:
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


def LIST_TO_TUPLE(frame: Frame, inst: Instruction) -> None:
    frame.push(common.TupleValue(protocols.unpack(frame.tracer, frame.pop())))


def LOAD_CLASSDEREF(frame: Frame, inst: Instruction) -> None:
    common.LOAD_DEREF(frame, inst)


def PRINT_EXPR(frame: Frame, inst: Instruction) -> None:
    frame.tracer.stop("call_unknown", "an expression is printed interactively")


_OWN = [
    LOAD_GLOBAL,
    LOAD_ATTR,
    LOAD_METHOD,
    KW_NAMES,
    CALL,
    CALL_FUNCTION_EX,
    MAKE_FUNCTION,
    FORMAT_VALUE,
    FOR_ITER,
    SEND,
    LIST_TO_TUPLE,
    LOAD_CLASSDEREF,
    PRINT_EXPR,
]

TABLE: dict[str, Handler] = {
    **common.TABLE,
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
}
