"""What an instruction that cannot be captured does, as one line of plain Python.

A Step is that line with its operands, and where the frame goes on afterwards. It runs in a small function that has
the user's file, line and name, so that a traceback shows the user's own line, and ``warnings`` blame it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.interpreter import NULL, Frame
from bothways.capture.bytecode.opcodes.common import BINARY_SYMBOLS
from bothways.capture.bytecode.opcodes.py314 import REST_OF_ENTERING, SPECIAL
from bothways.capture.values.code.functions import FunctionValue, MethodValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.objects.builtins import BuiltinValue
from bothways.capture.writing.dropping import holds_only_a_container
from bothways.errors import Unsupported
from bothways.runtime.continuations import END, Interpolation, enter_context, import_name, template
from bothways.source_text import is_plain_name

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Instruction

NULL_ABOVE = sys.version_info >= (3, 13)  # where NULL stands beside a callable
ALWAYS_KEYWORDS = sys.version_info >= (3, 14)  # where CALL_FUNCTION_EX has a place for them whether there are or not
# FOR_ITER jumps to instructions that only specialized loops run: so many are passed over.
AFTER_LOOP = {(3, 11): 0, (3, 12): 1}.get(sys.version_info[:2], 2)
CONVERSIONS = (None, "s", "r", "a")  # of a replacement field, by number
COERCE_TO_BOOL = 16  # the bit of COMPARE_OP's operand that asks for the truth of the result


@dataclass(frozen=True)
class Fact:
    """An object that is an operand or part of the stack as it is."""

    obj: Any


@dataclass(frozen=True)
class Named:
    """An operand that the program has under a name."""

    name: str


@dataclass(frozen=True)
class TakenOperand:
    """An operand that the step takes out of a list: an exception would keep it with the step's frame."""

    value: Value


@dataclass(frozen=True)
class StepOutcome:
    """Where the frame goes on: at an instruction, with this stack, when a condition over ``result`` holds.

    ``sets`` is a variable that has another value there, or none.
    """

    index: int
    stack: list[Any]
    when: str | None = None
    sets: tuple[str, Value | None] | None = None


@dataclass(frozen=True)
class StepResult:
    """A stack entry that the step gives: an expression over ``result``."""

    text: str = "result"


@dataclass(frozen=True)
class Step:
    """One line of Python over the operands {0}, {1} …, and what can come of it."""

    line: str
    operands: list[Any]  # Values, Facts, Named and Given
    outcomes: list[StepOutcome]
    callee: bool = False  # whether the first operand is called
    keywords: tuple[str, ...] | None = None  # of a call whose arguments are known one by one: the names of the last


Maker = Callable[[Frame, "Instruction"], "Step | None"]
TABLE: dict[str, Maker] = {}
# Whose lines hold a name of the user's, which has to mean itself there.
_WITH_NAME = frozenset(
    "LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR STORE_ATTR DELETE_ATTR LOAD_GLOBAL STORE_GLOBAL DELETE_GLOBAL".split()
)


def step_of(frame: Frame) -> Step | None:
    """The step for the instruction a frame stands at; None when only the frame itself can do it."""
    instruction = frame.decoded.instructions[frame.index]
    maker = TABLE.get(instruction.name)
    if maker is None or (instruction.name in _WITH_NAME and not is_plain_name(instruction.argval)):
        return None
    return maker(frame, instruction)


def _row(*names: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        TABLE.update(dict.fromkeys(names, maker))
        return maker

    return register


def _then(frame: Frame, count: int, *pushed: Any) -> list[StepOutcome]:
    """The next instruction, with so many entries of the stack exchanged for others."""
    below = frame.stack[: len(frame.stack) - count]
    return [StepOutcome(frame.index + 1, [*below, *pushed])]


def _top(frame: Frame, count: int) -> list[Any]:
    return frame.stack[len(frame.stack) - count :]


# Operations on what is on top of the stack: name -> how many operands, the line, whether it gives something.
_SIMPLE: dict[str, tuple[int, str, bool]] = {
    "UNARY_NEGATIVE": (1, "return -{0}", True),
    "UNARY_POSITIVE": (1, "return +{0}", True),
    "UNARY_INVERT": (1, "return ~{0}", True),
    "UNARY_NOT": (1, "return not {0}", True),
    "TO_BOOL": (1, "return True if {0} else False", True),
    "BINARY_SUBSCR": (2, "return {0}[{1}]", True),
    "STORE_SUBSCR": (3, "{1}[{2}] = {0}", False),
    "DELETE_SUBSCR": (2, "del {0}[{1}]", False),
    "BINARY_SLICE": (3, "return {0}[{1}:{2}]", True),
    "STORE_SLICE": (4, "{1}[{2}:{3}] = {0}", False),
}


def _simple(count: int, line: str, gives: bool) -> Maker:
    return lambda frame, inst: Step(line, _top(frame, count), _then(frame, count, *([StepResult()] if gives else [])))


TABLE.update({name: _simple(*row) for name, row in _SIMPLE.items()})


@_row("BINARY_OP")
def _binary(frame: Frame, inst: Instruction) -> Step | None:
    symbol = BINARY_SYMBOLS[inst.arg]
    if symbol == "[]":
        return TABLE["BINARY_SUBSCR"](frame, inst)
    line = f"{{0}} {symbol} {{1}}; return {{0}}" if symbol.endswith("=") else f"return {{0}} {symbol} {{1}}"
    return Step(line, _top(frame, 2), _then(frame, 2, StepResult()))


@_row("COMPARE_OP")
def _compare(frame: Frame, inst: Instruction) -> Step:
    if NULL_ABOVE and inst.arg & COERCE_TO_BOOL:
        # The comparison is a tensor's, mostly, and only its truth is left to Python.
        with suppress(Unsupported, Raised):
            compared = protocols.compare(frame.tracer, inst.argval, *_top(frame, 2))
            return Step("return True if {0} else False", [compared], _then(frame, 2, StepResult()))
        text = f"return True if {{0}} {inst.argval} {{1}} else False"
        return Step(text, _top(frame, 2), _then(frame, 2, StepResult()))
    return Step(f"return {{0}} {inst.argval} {{1}}", _top(frame, 2), _then(frame, 2, StepResult()))


@_row("CONTAINS_OP", "IS_OP")
def _contains(frame: Frame, inst: Instruction) -> Step:
    words = {("CONTAINS_OP", 0): "in", ("CONTAINS_OP", 1): "not in", ("IS_OP", 0): "is", ("IS_OP", 1): "is not"}
    return Step(f"return {{0}} {words[inst.name, inst.arg]} {{1}}", _top(frame, 2), _then(frame, 2, StepResult()))


# Attributes and globals.


def _callable(entry: Any, is_called: bool) -> list[Any]:
    """What is pushed for a value; NULL stands beside it when a call follows."""
    if not is_called:
        return [entry]
    return [entry, NULL] if NULL_ABOVE else [NULL, entry]


@_row("LOAD_ATTR", "LOAD_METHOD")
def _load_attr(frame: Frame, inst: Instruction) -> Step:
    is_called = inst.name == "LOAD_METHOD" or (sys.version_info >= (3, 12) and bool(inst.arg & 1))
    pushed = _callable(StepResult(), is_called)
    return Step(f"return {{0}}.{inst.argval}", _top(frame, 1), _then(frame, 1, *pushed))


@_row("LOAD_SUPER_ATTR")
def _load_super_attr(frame: Frame, inst: Instruction) -> Step:
    pushed = _callable(StepResult(), bool(inst.arg & 1))
    return Step(f"return {{0}}({{1}}, {{2}}).{inst.argval}", _top(frame, 3), _then(frame, 3, *pushed))


@_row("STORE_ATTR")
def _store_attr(frame: Frame, inst: Instruction) -> Step:
    return Step(f"{{1}}.{inst.argval} = {{0}}", _top(frame, 2), _then(frame, 2))


@_row("DELETE_ATTR")
def _delete_attr(frame: Frame, inst: Instruction) -> Step:
    return Step(f"del {{0}}.{inst.argval}", _top(frame, 1), _then(frame, 1))


@_row("LOAD_GLOBAL")
def _load_global(frame: Frame, inst: Instruction) -> Step:
    return Step(f"return {inst.argval}", [], _then(frame, 0, *_callable(StepResult(), bool(inst.arg & 1))))


@_row("STORE_GLOBAL")
def _store_global(frame: Frame, inst: Instruction) -> Step:
    return Step(f"global {inst.argval}; {inst.argval} = {{0}}", _top(frame, 1), _then(frame, 1))


@_row("DELETE_GLOBAL")
def _delete_global(frame: Frame, inst: Instruction) -> Step:
    return Step(f"global {inst.argval}; del {inst.argval}", [], _then(frame, 0))


@_row("IMPORT_NAME")
def _import(frame: Frame, inst: Instruction) -> Step:
    level, names = _top(frame, 2)
    operands = [Fact(import_name), Fact(frame.globals), Fact(inst.argval), names, level]
    return Step("return {0}({1}, {2}, {3}, {4})", operands, _then(frame, 2, StepResult()))


@_row("LOAD_BUILD_CLASS")
def _build_class(frame: Frame, inst: Instruction) -> Step:
    return Step("return __build_class__", [], _then(frame, 0, StepResult()))


# Calls.

# Functions that look at the frame which calls them: only the frame itself can call them.
FRAME_READERS = frozenset({locals, vars, dir, eval, exec, super, sys._getframe, breakpoint})
# What Python functions that do have among their names: ``inspect.stack``, ``traceback.print_stack`` and the like.
# Whoever asks for the globals or the module is served well by a step, which has the user's.
_FRAME_FINDERS = frozenset({"_getframe", "currentframe"})


def reads_frame(frame: Frame) -> bool:
    """Whether the instruction a frame stands at calls a function that looks at the variables of that frame."""
    instruction = frame.decoded.instructions[frame.index]
    if instruction.name not in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
        return False
    return _finds_frame(_callee(frame, instruction).realize())


def _finds_frame(target: Value) -> bool:
    target = target.function.realize() if isinstance(target, MethodValue) else target
    if isinstance(target, BuiltinValue):
        return target.function in FRAME_READERS
    if not isinstance(target, FunctionValue):
        return False
    names = target.code.co_names
    return not _FRAME_FINDERS.isdisjoint(names) and ("f_globals" not in names or "f_locals" in names)


def _called(frame: Frame, count: int, function: Any, arguments: list[Any], names: tuple[str, ...]) -> Step | None:
    target = function.realize()
    if _finds_frame(target) or (getattr(target, "cls", None) is super and not arguments):
        return None
    if not all(map(is_plain_name, names)):
        return None
    split = len(arguments) - len(names)
    texts = [f"{{{index + 1}}}" for index in range(split)]
    texts += [f"{name}={{{index + split + 1}}}" for index, name in enumerate(names)]
    line = f"return {{0}}({', '.join(texts)})"
    return Step(line, [function, *arguments], _then(frame, count, StepResult()), callee=True, keywords=names)


def _callee(frame: Frame, inst: Instruction) -> Any:
    """What a call calls."""
    above = inst.arg + (inst.name == "CALL_KW")
    if inst.name == "CALL_FUNCTION_EX":
        above = 1 + _may_have_keywords(inst)
    first, second = frame.stack[-2 - above], frame.stack[-1 - above]
    if NULL_ABOVE or (first is not NULL and inst.name != "CALL_FUNCTION_EX"):
        return first
    return second


@_row("CALL", "CALL_KW")
def _call(frame: Frame, inst: Instruction) -> Step | None:
    names, extra = frame.keyword_names, 0
    if inst.name == "CALL_KW":
        names, extra = frame.stack[-1].constant(), 1
    entries = _top(frame, inst.arg + 2 + extra)
    first, second, *arguments = entries[: len(entries) - extra]
    function = _callee(frame, inst)
    owner = second if NULL_ABOVE or first is not NULL else NULL
    arguments = arguments if owner is NULL else [owner, *arguments]
    return _called(frame, len(entries), function, arguments, names)


def _may_have_keywords(inst: Instruction) -> bool:
    """Whether keywords, or NULL in their place, stand above the arguments of a CALL_FUNCTION_EX."""
    return ALWAYS_KEYWORDS or bool(inst.arg & 1)


@_row("CALL_FUNCTION_EX")
def _call_unpacked(frame: Frame, inst: Instruction) -> Step | None:
    entries = _top(frame, 3 + _may_have_keywords(inst))
    function = _callee(frame, inst)
    if _called(frame, 0, function, [], ()) is None:
        return None
    arguments = [entry for entry in entries[2:] if entry is not NULL]
    line = "return {0}(*{1}, **{2})" if len(arguments) == 2 else "return {0}(*{1})"
    return Step(line, [function, *arguments], _then(frame, len(entries), StepResult()), callee=True)


# Containers that grow on the stack.


_GROWS = {
    "LIST_EXTEND": "{0}.extend({1})",
    "SET_UPDATE": "{0}.update({1})",
    "DICT_UPDATE": "{0}.update({1})",
    "LIST_APPEND": "{0}.append({1})",
    "SET_ADD": "{0}.add({1})",
}


@_row(*_GROWS)
def _grow(frame: Frame, inst: Instruction) -> Step:
    return Step(_GROWS[inst.name], [frame.stack[-1 - inst.arg], frame.stack[-1]], _then(frame, 1))


@_row("MAP_ADD")
def _map_add(frame: Frame, inst: Instruction) -> Step:
    key, value = _top(frame, 2)
    return Step("{0}[{1}] = {2}", [frame.stack[-2 - inst.arg], key, value], _then(frame, 2))


@_row("UNPACK_SEQUENCE")
def _unpack(frame: Frame, inst: Instruction) -> Step:
    names = ", ".join(f"item_{index}" for index in range(inst.arg))
    pushed = [StepResult(f"result[{index}]") for index in reversed(range(inst.arg))]
    return Step(f"[{names}] = {{0}}; return [{names}]", _top(frame, 1), _then(frame, 1, *pushed))


# Text.


@_row("FORMAT_VALUE")
def _format_value(frame: Frame, inst: Instruction) -> Step:
    with_spec = bool(inst.arg & 4)
    operands = _top(frame, 1 + with_spec)
    facts = [Fact(format), Fact({0: None, 1: str, 2: repr, 3: ascii}[inst.arg & 3])]
    value = "{0}" if inst.arg & 3 == 0 else f"{{{len(operands) + 1}}}({{0}})"
    line = f"return {{{len(operands)}}}({value}{', {1}' if with_spec else ''})"
    return Step(line, [*operands, *facts], _then(frame, len(operands), StepResult()))


@_row("CONVERT_VALUE")
def _convert(frame: Frame, inst: Instruction) -> Step:
    function = Fact({1: str, 2: repr, 3: ascii}[inst.arg])
    return Step("return {1}({0})", [*_top(frame, 1), function], _then(frame, 1, StepResult()))


@_row("FORMAT_SIMPLE", "FORMAT_WITH_SPEC")
def _format(frame: Frame, inst: Instruction) -> Step:
    count = 1 if inst.name == "FORMAT_SIMPLE" else 2
    arguments = ", ".join(f"{{{index}}}" for index in range(count))
    operands = [*_top(frame, count), Fact(format)]
    return Step(f"return {{{count}}}({arguments})", operands, _then(frame, count, StepResult()))


@_row("BUILD_STRING")
def _build_string(frame: Frame, inst: Instruction) -> Step:
    parts = ", ".join(f"{{{index}}}" for index in range(inst.arg))
    return Step(f'return "".join([{parts}])', _top(frame, inst.arg), _then(frame, inst.arg, StepResult()))


@_row("BUILD_INTERPOLATION")
def _build_interpolation(frame: Frame, inst: Instruction) -> Step:
    count = 2 + (inst.arg & 1)  # the value, its text, and a format where there is one
    spec = "{2}" if count == 3 else "''"
    line = f"return {{{count}}}({{0}}, {{1}}, {CONVERSIONS[inst.arg >> 2]!r}, {spec})"
    return Step(line, [*_top(frame, count), Fact(Interpolation)], _then(frame, count, StepResult()))


@_row("BUILD_TEMPLATE")
def _build_template(frame: Frame, inst: Instruction) -> Step:
    return Step("return {2}({0}, {1})", [*_top(frame, 2), Fact(template)], _then(frame, 2, StepResult()))


# Loops and branches.


@_row("POP_TOP", "POP_ITER")
def _pop_top(frame: Frame, inst: Instruction) -> Step:
    return Step("pass", [], _then(frame, 1))  # what goes on is not given it, so it is gone by then


@_row("STORE_FAST", "DELETE_FAST")
def _forget(frame: Frame, inst: Instruction) -> Step | None:
    stored = _top(frame, inst.name == "STORE_FAST")
    if not all(isinstance(value, Value) for value in stored):
        return None
    below = frame.stack[: len(frame.stack) - len(stored)]
    sets = inst.argval, stored[0] if stored else None
    return Step("pass", [], [StepOutcome(frame.index + 1, below, sets=sets)])


@_row("GET_ITER")
def _get_iter(frame: Frame, inst: Instruction) -> Step:
    return Step("return {1}({0})", [*_top(frame, 1), Fact(iter)], _then(frame, 1, StepResult()))


@_row("FOR_ITER")
def _for_iter(frame: Frame, inst: Instruction) -> Step:
    ended = StepOutcome(inst.target + AFTER_LOOP, frame.stack[:-1], "result is {end}")
    going_on = StepOutcome(frame.index + 1, [*frame.stack, StepResult()])
    iterator = frame.stack[-1]
    if holds_only_a_container(iterator):
        return Step("return {1}({0}, {2})", [iterator, Fact(next), Fact(END)], [ended, going_on])
    return Step("return {1}({0}.pop(), {2})", [TakenOperand(iterator), Fact(next), Fact(END)], [ended, going_on])


def _branch(jumps_if: bool, keeps: bool = False) -> Maker:
    def maker(frame: Frame, inst: Instruction) -> Step:
        below = frame.stack[:-1]
        jumped = StepOutcome(inst.target, list(frame.stack) if keeps else below, "result" if jumps_if else "not result")
        return Step("return True if {0} else False", _top(frame, 1), [jumped, StepOutcome(frame.index + 1, below)])

    return maker


TABLE.update({
    **{f"POP_JUMP_{direction}IF_TRUE": _branch(True) for direction in ("", "FORWARD_", "BACKWARD_")},
    **{f"POP_JUMP_{direction}IF_FALSE": _branch(False) for direction in ("", "FORWARD_", "BACKWARD_")},
    "JUMP_IF_TRUE_OR_POP": _branch(True, keeps=True),
    "JUMP_IF_FALSE_OR_POP": _branch(False, keeps=True),
})  # fmt: skip


@_row("JUMP_BACKWARD")
def _jump_backward(frame: Frame, inst: Instruction) -> Step:
    return Step("pass", [], [StepOutcome(inst.target, list(frame.stack))])


@_row("BEFORE_WITH")
def _before_with(frame: Frame, inst: Instruction) -> Step:
    pushed = [StepResult("result[0]"), StepResult("result[1]")]
    return Step("return {1}({0})", [*_top(frame, 1), Fact(enter_context)], _then(frame, 1, *pushed))


@_row("LOAD_SPECIAL")
def _enter_with(frame: Frame, inst: Instruction) -> Step | None:
    if SPECIAL[inst.arg] != "__exit__":
        return None
    entered = [*frame.stack[:-2], StepResult("result[0]"), NULL, StepResult("result[1]")]
    outcome = StepOutcome(frame.index + 1 + REST_OF_ENTERING, entered)
    return Step("return {1}({0})", [*_top(frame, 1), Fact(enter_context)], [outcome])
