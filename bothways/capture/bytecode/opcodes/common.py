"""Instructions that mean the same in all versions of CPython: stack, names, operators, containers, jumps."""

from __future__ import annotations

import builtins
import sys
import types
from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.instructions import FREE, free_names
from bothways.capture.bytecode.interpreter import NULL, Frame, Signal
from bothways.capture.guards import policy
from bothways.capture.guards.sources import Item
from bothways.capture.values.code.cells import CellValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue, constant_value
from bothways.capture.values.core.raised import Raised
from bothways.capture.writing.dropping import check_dropped, check_forgotten
from bothways.node_facts import facts_of_node, note_of_node

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler, Instruction

TABLE: dict[str, Handler] = {}


def opcode(handler: Handler) -> Handler:
    """Register a handler under its function's name, which is the instruction's."""
    TABLE[handler.__name__] = handler
    return handler


def unknown_opcode(frame: Frame, inst: Instruction) -> None:
    frame.tracer.stop("opcode_unknown", f"the instruction {inst.name} is not supported")


def break_with(code: str, reason: str) -> Handler:
    """A handler for instructions that are left to plain Python on purpose."""

    def handler(frame: Frame, inst: Instruction) -> None:
        frame.tracer.stop(code, reason)

    return handler


_ASYNC = "GET_AWAITABLE GET_AITER GET_ANEXT BEFORE_ASYNC_WITH END_ASYNC_FOR ASYNC_GEN_WRAP ASYNC_GEN_ATHROW_SEND"
_GROUPS = "CHECK_EG_MATCH PREP_RERAISE_STAR"
_CLASS_BODY = "LOAD_NAME STORE_NAME DELETE_NAME LOAD_LOCALS LOAD_FROM_DICT_OR_GLOBALS LOAD_FROM_DICT_OR_DEREF"
for _names, _code, _reason in (
    (_ASYNC, "async", "asynchronous code is not captured"),
    (_GROUPS, "opcode_unknown", "except* is not supported"),
    (_CLASS_BODY, "class_definition", "the body of a class or module is run inside the function"),
    ("IMPORT_STAR", "import", "a module's names are imported with *"),
    ("PRINT_EXPR", "call_unknown", "an expression is printed interactively"),
):
    TABLE.update(dict.fromkeys(_names.split(), break_with(_code, _reason)))


def no_operation(frame: Frame, inst: Instruction) -> None:
    """Instructions that only matter to CPython's own execution."""


for _name in ("NOP", "RESUME", "CACHE", "EXTENDED_ARG", "PRECALL", "SETUP_ANNOTATIONS"):
    TABLE[_name] = no_operation


# The stack.


@opcode
def POP_TOP(frame: Frame, inst: Instruction) -> None:
    check_dropped(frame.tracer, frame.pop())


@opcode
def PUSH_NULL(frame: Frame, inst: Instruction) -> None:
    frame.push(NULL)


@opcode
def COPY(frame: Frame, inst: Instruction) -> None:
    frame.push(frame.stack[-inst.arg])


@opcode
def SWAP(frame: Frame, inst: Instruction) -> None:
    stack = frame.stack
    stack[-1], stack[-inst.arg] = stack[-inst.arg], stack[-1]


@opcode
def LOAD_CONST(frame: Frame, inst: Instruction) -> None:
    frame.push(load_constant(frame, inst.argval))


def load_constant(frame: Frame, content: object) -> Value:
    return constant_value(content, frame.tracer)


# Local variables and cells.


@opcode
def LOAD_FAST(frame: Frame, inst: Instruction) -> None:
    frame.push(read_local(frame, inst.argval))


def read_local(frame: Frame, name: str) -> Any:
    value = frame.locals.get(name)
    if value is None:
        frame.tracer.throw(
            UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with a value"
        )
    return value


@opcode
def STORE_FAST(frame: Frame, inst: Instruction) -> None:
    check_forgotten(frame, inst.argval)
    frame.locals[inst.argval] = named(frame.pop(), inst.argval)


def named(value: Any, variable: str) -> Any:
    """A value that is bound to a variable; the node of a tensor remembers the first one, for people."""
    if isinstance(value, linked.TensorValue) and facts_of_node(value.node).variable is None:
        note_of_node(value.node, variable=variable)
    return value


@opcode
def DELETE_FAST(frame: Frame, inst: Instruction) -> None:
    read_local(frame, inst.argval)
    check_forgotten(frame, inst.argval)
    del frame.locals[inst.argval]


@opcode
def MAKE_CELL(frame: Frame, inst: Instruction) -> None:
    frame.locals[inst.argval] = CellValue(frame.locals.get(inst.argval))


@opcode
def COPY_FREE_VARS(frame: Frame, inst: Instruction) -> None:
    for name, cell in zip(free_names(frame.code), frame.function.closure, strict=True):
        frame.locals[name] = cell


@opcode
def LOAD_CLOSURE(frame: Frame, inst: Instruction) -> None:
    frame.push(frame.locals[inst.argval])


@opcode
def LOAD_DEREF(frame: Frame, inst: Instruction) -> None:
    content = read_cell(frame, inst.argval)
    if content.source is not None:
        frame.tracer.assumptions.look_up(content.source)
    frame.push(content)


def read_cell(frame: Frame, name: str) -> Value:
    cell: CellValue = frame.locals[name]
    if cell.content is not None:
        return cell.content
    if name in free_names(frame.code):
        shown, where = name.removesuffix(FREE), "where it is not associated with a value in enclosing scope"
        frame.tracer.throw(NameError, f"cannot access free variable {shown!r} {where}", name=shown)
    frame.tracer.throw(
        UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with a value"
    )


@opcode
def STORE_DEREF(frame: Frame, inst: Instruction) -> None:
    frame.locals[inst.argval].store(frame.tracer, frame.pop())


@opcode
def DELETE_DEREF(frame: Frame, inst: Instruction) -> None:
    read_cell(frame, inst.argval)
    frame.locals[inst.argval].store(frame.tracer, None)


# Globals.


# What is rarely replaced in a library's own globals: definitions, which are stamped.
FACTS = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)


def read_global(frame: Frame, name: str) -> Value:
    """A global or builtin variable, pending writes first."""
    tracer, globals_ = frame.tracer, frame.globals
    written = tracer.effects.read_global(globals_, name)
    if written is not None and written.value is not None:
        return written.value
    module = policy.name_of(globals_)
    library = policy.is_library_module(module)
    if written is None and name in globals_:
        if library and isinstance(globals_[name], FACTS):
            tracer.definitions.name(module, globals_, name)
            return linked.library_value(tracer, globals_[name])
        return tracer.member(globals_[name], Item(tracer.globals_source(globals_), name), "{c0} in {s0}")
    tracer.definitions.builtin(name)
    if hasattr(builtins, name):
        if library:
            tracer.definitions.name(module, globals_, name)
        elif written is None:
            tracer.guard("{c0} not in {s0}", tracer.globals_source(globals_), name)
        return linked.library_value(tracer, getattr(builtins, name))
    if written is None:
        tracer.guard("{c0} not in {s0}", tracer.globals_source(globals_), name)
    tracer.throw(NameError, f"name {name!r} is not defined", name=name)


@opcode
def STORE_GLOBAL(frame: Frame, inst: Instruction) -> None:
    tracer = frame.tracer
    tracer.effects.write_global(frame.globals, tracer.globals_source(frame.globals), inst.argval, frame.pop())


@opcode
def DELETE_GLOBAL(frame: Frame, inst: Instruction) -> None:
    tracer, name, source = frame.tracer, inst.argval, frame.tracer.globals_source(frame.globals)
    written = tracer.effects.read_global(frame.globals, name)
    if written is None:
        tracer.guard("{c0} in {s0}" if name in frame.globals else "{c0} not in {s0}", source, name)
    if written.value is None if written is not None else name not in frame.globals:
        tracer.throw(NameError, f"name {name!r} is not defined", name=name)
    tracer.effects.write_global(frame.globals, source, name, None)


# Operators.


@opcode
def BINARY_OP(frame: Frame, inst: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(protocols.binary(frame.tracer, BINARY_SYMBOLS[inst.arg], left, right))


# By their numbers; the last one is for subscripts, since 3.14.
BINARY_SYMBOLS = "+ & // << @ * % | ** >> - / ^ += &= //= <<= @= *= %= |= **= >>= -= /= ^= []".split()


@opcode
def UNARY_NEGATIVE(frame: Frame, inst: Instruction) -> None:
    frame.push(protocols.unary(frame.tracer, "-", frame.pop()))


@opcode
def UNARY_POSITIVE(frame: Frame, inst: Instruction) -> None:
    frame.push(protocols.unary(frame.tracer, "+", frame.pop()))


@opcode
def UNARY_INVERT(frame: Frame, inst: Instruction) -> None:
    frame.push(protocols.unary(frame.tracer, "~", frame.pop()))


@opcode
def UNARY_NOT(frame: Frame, inst: Instruction) -> None:
    frame.push(ConstantValue(not protocols.truth(frame.tracer, frame.pop())))


@opcode
def COMPARE_OP(frame: Frame, inst: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(protocols.compare(frame.tracer, inst.argval, left, right))


@opcode
def IS_OP(frame: Frame, inst: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(ConstantValue(protocols.same_object(frame.tracer, left, right) != bool(inst.arg)))


@opcode
def CONTAINS_OP(frame: Frame, inst: Instruction) -> None:
    container, item = frame.pop(), frame.pop()
    frame.push(ConstantValue(protocols.contains(frame.tracer, container, item) != bool(inst.arg)))


@opcode
def BINARY_SUBSCR(frame: Frame, inst: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    owner = container.realize()
    frame.push(owner.get_item(frame.tracer, linked.as_index(frame.tracer, owner, key).realize()))


@opcode
def STORE_SUBSCR(frame: Frame, inst: Instruction) -> None:
    key, container, value = frame.pop(), frame.pop(), frame.pop()
    owner = container.realize()
    owner.set_item(frame.tracer, linked.as_index(frame.tracer, owner, key).realize(), value)


@opcode
def DELETE_SUBSCR(frame: Frame, inst: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    container.realize().del_item(frame.tracer, key.realize())


@opcode
def STORE_ATTR(frame: Frame, inst: Instruction) -> None:
    owner, value = frame.pop(), frame.pop()
    owner.realize().set_attr(frame.tracer, inst.argval, value)


@opcode
def DELETE_ATTR(frame: Frame, inst: Instruction) -> None:
    frame.pop().realize().del_attr(frame.tracer, inst.argval)


# Loops and jumps.


@opcode
def GET_ITER(frame: Frame, inst: Instruction) -> None:
    frame.push(protocols.iterate(frame.tracer, frame.pop()))


def jump_forward(frame: Frame, inst: Instruction) -> None:
    frame.jump(inst.target)


for _name in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"):
    TABLE[_name] = jump_forward


def pop_jump_if(expected: bool) -> Handler:
    def handler(frame: Frame, inst: Instruction) -> None:
        if branch_truth(frame, frame.pop(), frame.index - 1) is expected:
            frame.jump(inst.target)

    return handler


def branch_truth(frame: Frame, value: Value, jump: int) -> bool:
    """The truth of a value that decides the jump at an index; that it leads past an ``assert`` or another ``raise`` is
    taken for granted."""
    value = value.realize()
    if isinstance(value, ConstantValue):
        return protocols.truth(frame.tracer, value)
    wanted = _passes(frame, jump)
    if wanted is not None and linked.takes_for_granted(frame.tracer, value, wanted):
        return wanted
    return protocols.truth(frame.tracer, value)


LONGEST_RAISE = 64  # instructions that make an exception and its text


def _passes(frame: Frame, jump: int) -> bool | None:
    """The truth with which a jump leads past a ``raise``; None where neither side raises at once, or both do."""
    instruction = frame.decoded.instructions[jump]
    if not instruction.name.startswith("POP_JUMP") or not instruction.name.endswith(("_IF_TRUE", "_IF_FALSE")):
        return None
    sides = _raises(frame, instruction.target), _raises(frame, jump + 1)
    return None if sides[0] == sides[1] else instruction.name.endswith("_IF_TRUE") is not sides[0]


def _raises(frame: Frame, start: int) -> bool:
    """Whether code comes to a ``raise`` whatever happens, and not to one that ends a loop."""
    for instruction in frame.decoded.instructions[start : start + LONGEST_RAISE]:
        if instruction.argval in ENDS_OF_LOOPS:
            return False
        if instruction.name == "RAISE_VARARGS":
            return True
        if "JUMP" in instruction.name or instruction.name.startswith(LEAVING):
            return False
    return False


ENDS_OF_LOOPS = ("StopIteration", "StopAsyncIteration")
LEAVING = ("RETURN", "FOR_ITER", "SEND", "YIELD", "RERAISE")


def pop_jump_if_none(expected: bool) -> Handler:
    def handler(frame: Frame, inst: Instruction) -> None:
        if protocols.same_object(frame.tracer, frame.pop(), ConstantValue(None)) is expected:
            frame.jump(inst.target)

    return handler


@opcode
def RETURN_VALUE(frame: Frame, inst: Instruction) -> Signal:
    frame.result = frame.pop()
    return Signal.RETURN


# Classes and imports.


@opcode
def LOAD_BUILD_CLASS(frame: Frame, inst: Instruction) -> None:
    frame.tracer.stop("class_definition", "a class is defined inside the function")


def absolute_name(globals_: dict[str, Any], name: str, level: int) -> str:
    """The full name of a module that is imported relative to the package of these globals; empty outside of one."""
    if not level:
        return name
    parts = (globals_.get("__package__") or "").split(".")
    base = ".".join(parts[: max(len(parts) - level + 1, 0)])
    return f"{base}.{name}" if base and name else base


@opcode
def IMPORT_NAME(frame: Frame, inst: Instruction) -> None:
    """Importing what is imported already looks it up, and nothing else."""
    names, level = frame.pop(), frame.pop()
    wanted = absolute_name(frame.globals, inst.argval, level.constant())
    module = sys.modules.get(wanted)
    missing = [name for name in names.constant() or () if not hasattr(module, name)]  # modules to be loaded, maybe
    if module is None or missing:
        frame.tracer.stop("import", f"{inst.argval} is imported inside the function")
    top = wanted if names.constant() else wanted.partition(".")[0]
    frame.tracer.definitions.name("sys.modules", sys.modules, top)
    frame.push(linked.library_value(frame.tracer, sys.modules[top]))


@opcode
def IMPORT_FROM(frame: Frame, inst: Instruction) -> None:
    tracer, module, name = frame.tracer, frame.stack[-1], inst.argval
    try:
        content = protocols.get_attr(tracer, module, name)
    except Raised as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise
        content = linked.library_value(tracer, tracer.run_const(_import_from, module.realize().constant(), name))
    frame.push(content)


def _import_from(module: Any, name: str) -> Any:
    """What Python gives, or says, where a module has no such attribute."""
    scope: dict[str, Any] = {"__builtins__": {"__import__": lambda *_: module}}
    exec(f"from module import {name} as content", scope)
    return scope["content"]
