"""How a program ends: with what the function returns, or at a break, with the rest of the frame as a continuation."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from bothways import torch_compat
from bothways.capture.breaks.given_cells import may_be_given
from bothways.capture.breaks.steps import (
    END,
    Fact,
    Named,
    Step,
    StepOutcome,
    StepResult,
    TakenOperand,
    reads_frame,
    step_of,
)
from bothways.capture.bytecode.frame_state import stack_texts, stack_values
from bothways.capture.bytecode.instructions import free_names
from bothways.capture.bytecode.interpreter import Frame, Handled
from bothways.capture.bytecode.liveness import live_variables
from bothways.capture.guards import policy
from bothways.capture.guards.sources import Local, Source
from bothways.capture.values.code.functions import FunctionValue, MethodValue
from bothways.capture.values.core.base import LazyValue, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.objects.builtins import BoundClassMethod
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.writing.dropping import is_iterator, must_stay
from bothways.runtime.code_tables import SUSPENDS
from bothways.runtime.continuations import Next, entering, go_on, later, step_function, while_handling
from bothways.runtime.program import COMPILED_CALLEE
from bothways.runtime.resume import Continuation, NotResumable, Origin, ResumePoint, entry_point, resumed_code
from bothways.source_text import words_in

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


NOTHING = ConstantValue(None)


@dataclass
class Return:
    """The function came to its end."""

    runs_python: ClassVar = False

    output: Value
    continuations: list[Continuation] = field(default_factory=list)

    def roots(self) -> list[Value]:
        return [self.output]

    def emit(self, emitter: Emitter) -> list[str]:
        return [f"return {emitter.rebuild(self.output)}"]


class Stop:
    """The frame stands before an instruction that is left to plain Python."""

    runs_python: ClassVar = True

    def __init__(
        self, tracer: Tracer, frame: Frame, origin: Origin, *, is_watched: bool = False, is_left: bool = False
    ) -> None:
        """``is_left``: functions that were made inside are called as they are, and not compiled for themselves."""
        self._is_left = is_left
        self._is_watched = is_watched or reads_frame(frame)  # the frame itself goes on, with all that it has
        if not self._is_watched and may_be_given(origin.code, frame.function.closure):
            origin = origin.without_closure()
        if origin.closure is not None:
            tracer.names.bind()
        self._tracer, self._frame, self._origin = tracer, frame, origin
        names = frame.code.co_freevars if origin.closure_is_given else ()
        self._closure = dict(zip(names, frame.function.closure, strict=False))
        self._is_continuation = origin.shift > 0
        self._live = live_variables(origin.code, origin.globals)
        self._numbers = itertools.count()
        self.continuations: list[Continuation] = []
        # Where the frame's instructions are in the original, by index and by offset.
        self._first = next(
            index for index, each in enumerate(frame.decoded.instructions) if each.offset >= origin.shift
        )
        self._step = None if self._is_watched else step_of(frame)

    def _outcomes(self) -> list[StepOutcome]:
        if self._step is not None:
            return self._step.outcomes
        return [StepOutcome(_before_prefixes(self._frame), self._frame.stack)]

    def roots(self) -> list[Value]:
        """What has to be built: operands, what is on the stack, the variables that may be read."""
        operands = [getattr(each, "value", each) for each in (self._step.operands if self._step else ())]
        roots = [operand for operand in operands if isinstance(operand, Value)]
        roots += _entered_contexts(self._tracer)
        for outcome in self._outcomes():
            roots += stack_values(outcome.stack)
            roots += [value for value in self._variables(outcome).values() if value is not None]
        handler = self._handler()
        if handler is not None:
            roots += stack_values(handler.stack)
            roots += [value for value in self._variables(handler).values() if value is not None]
        return roots

    def _variables(self, outcome: StepOutcome) -> dict[str, Value | None]:
        """The variables that may be read where a frame goes on; None for those that are unbound."""
        live = self._origin.slots if self._is_watched else self._live[outcome.index - self._first]
        variables: dict[str, Value | None] = {**self._closure, **self._frame.locals}
        variables.update([outcome.sets] if outcome.sets is not None else [])
        slots = ((name, variables.get(name)) for name in self._origin.slots)
        return {name: value for name, value in slots if name in live or must_stay(value)}

    def _handler(self) -> StepOutcome | None:
        """Where the frame goes on when the step raises."""
        row = self._frame.decoded.handler_for(self._frame.index)
        if row is None or self._step is None:
            return None
        lasti = [self._frame.index] if row.push_lasti else []
        return StepOutcome(row.target, [*self._frame.stack[: row.depth], *lasti, StepResult("failure")])

    # Text.

    def emit(self, emitter: Emitter) -> list[str]:
        lines = self._open_again(emitter)
        if self._step is None:
            return [*lines, *self._go_on(emitter, self._outcomes()[0], is_compiled=False)]
        lines += self._run_step(emitter, self._step)
        for outcome in self._step.outcomes:
            following = self._go_on(emitter, outcome, is_compiled=True)
            if outcome.when is None:
                lines += following
            else:
                condition = outcome.when.format(end=emitter.inject(END, "END")) if "{" in outcome.when else outcome.when
                lines += [f"if {condition}:", *(f"    {line}" for line in following)]
        return lines

    def _open_again(self, emitter: Emitter) -> list[str]:
        """Enter the contexts, each in the grad mode it was entered in, which leaving inference mode puts back."""
        lines: list[str] = []
        grad: bool | None = None
        for context in _entered_contexts(self._tracer):
            outside: bool | None = getattr(context, "grad_outside", None)
            if grad is not None and outside is not None:
                lines += _set_grad(emitter, grad, outside)
            lines.append(f"{emitter.rebuild(context)}.__enter__()")
            if outside is not None:
                grad = not context.arguments[0]
        return lines if grad is None else [*lines, *_set_grad(emitter, grad, self._tracer.torch_state.grad_inside)]

    def _entered(self, step: Step) -> Step:
        """A call of a function that was made inside, as its code entered at the beginning.

        The function is another one at each call, but its code is not, so the programs of one serve the others.
        """
        function = step.operands[0].realize() if step.callee and isinstance(step.operands[0], Value) else None
        if not isinstance(function, FunctionValue) or function.source is not None or step.keywords is None:
            return step
        code = function.code
        if code.co_flags & SUSPENDS or "__class__" in code.co_freevars or not policy.is_users(function.globals):
            return step
        if free_names(code) != code.co_freevars or not may_be_given(code, function.closure):
            return step  # two parameters would have one name, or an error another one
        split = len(step.operands) - len(step.keywords)
        arguments = [value for value in step.operands[1:split] if isinstance(value, Value)]
        keywords = dict(zip(step.keywords, step.operands[split:], strict=True))
        try:
            bound = function.bind(self._tracer, arguments, keywords)
        except Raised:  # the arguments do not fit: the call itself says so
            return step
        origin = Origin(code, function.globals, None, closure_is_given=True)
        bound.update(zip(code.co_freevars, function.closure, strict=True))
        name = self._name("enter", origin, entry_point(code))
        operands = [bound.get(slot, NOTHING) for slot in origin.slots]
        texts = ", ".join(f"{{{index}}}" for index in range(2, len(operands) + 2))
        line = f"return {{0}}({{1}}({texts}))"
        return replace(step, line=line, operands=[Fact(go_on), Named(name), *operands], callee=False)

    def _closure_operand(self, emitter: Emitter, operand: Any, text: str) -> str:
        """A function that is given to an optimizer, which calls it as often as it decides to, compiled."""
        closure = operand.realize() if isinstance(operand, Value) else None
        function = closure.function.realize() if isinstance(closure, MethodValue) else closure
        if not isinstance(function, FunctionValue) or not policy.is_users(function.globals):
            return text
        if function.source is not None or function is not closure:
            return f"{COMPILED_CALLEE}({text})"
        entered = self._entered(Step("", [function], [], callee=True, keywords=()))
        if entered.callee:
            return text
        operands = [self._operand(emitter, each) for each in entered.operands[1:]]
        return f"{emitter.inject(entering, 'entering')}({', '.join(operands)})"

    def _run_step(self, emitter: Emitter, step: Step) -> list[str]:
        step = step if self._is_left else self._entered(step)
        operands = [self._operand(emitter, each) for each in step.operands]
        stays = self._is_left and step.callee and _is_written_here(step.operands[0])
        if step.callee and not stays and _may_be_compiled(step.operands[0]):
            operands[0] = f"{COMPILED_CALLEE}({operands[0]})"
        elif step.callee and _is_optimizer_step(step.operands[0]):
            arguments = zip(step.operands[1:], operands[1:], strict=True)
            operands[1:] = [self._closure_operand(emitter, operand, text) for operand, text in arguments]
        # The frame stands before the instruction; lines are those of the instruction before the index.
        self._frame.index += 1
        where = self._frame.position()
        self._frame.index -= 1
        run = step_function(step.line, len(operands), where, self._frame.globals)
        handled = next((entry for entry in reversed(self._frame.stack) if isinstance(entry, Handled)), None)
        if handled is not None:
            operands = [emitter.rebuild(handled.raised), emitter.inject(run, "step"), *operands]
            run = while_handling
        call = f"result = {emitter.inject(run, 'step')}({', '.join(operands)})"
        handler = self._handler()
        held = self._held_by_stack(emitter)
        if handler is None:
            return [call] if not held else [
                "try:", f"    {call}", "except BaseException:", f"    {' = '.join(held)} = None", "    raise",
            ]  # fmt: skip
        return [
            "failure = None",
            "try:",
            f"    {call}",
            "except BaseException as error:",
            "    failure = error",
            "if failure is not None:",
            *(f"    {line}" for line in self._go_on(emitter, handler, is_compiled=True)),
        ]

    def _held_by_stack(self, emitter: Emitter) -> list[str]:
        """The names of iterators that only the frame's stack holds: an exception that passes lets go of them."""
        for value in stack_values(self._frame.stack):
            if is_iterator(value):
                emitter.rebuild(value)
        variables = self._variables(StepOutcome(self._frame.index, [])).values()
        kept = {self._variable(emitter, value) for value in variables if must_stay(value)}
        return [name for name in self._in_order(emitter) if name not in kept]

    def _in_order(self, emitter: Emitter) -> list[str]:
        """The names of iterators as a frame lets go of them: from the top of the stack on, after what they hold."""
        values = [value for value in stack_values(self._frame.stack) if is_iterator(value)]
        stack = [emitter.rebuild(value) for value in values]
        inside = [name for name in reversed(emitter.iterators) if name not in stack]
        return [*inside, *(name for name in reversed(stack) if name in emitter.iterators)]

    def _held_parameters(self, emitter: Emitter, variables: Iterable[Value | None]) -> list[str]:
        """The parameters that hold what was on the stack, or a generator that may be let go of before the end."""
        parameters = self._frame.code.co_varnames[: self._frame.code.co_argcount]
        sources: list[Source | None] = []
        if self._is_continuation:
            sources += [Local(name) for name in parameters[len(self._origin.slots) :]]
        sources += [value.source for value in variables if isinstance(value, LazyValue) and must_stay(value)]
        return [emitter.read(source) for source in dict.fromkeys(sources) if isinstance(source, Local)]

    def _operand(self, emitter: Emitter, operand: Value | Fact | Named | TakenOperand) -> str:
        if isinstance(operand, Named):
            return operand.name
        if isinstance(operand, TakenOperand):
            return f"[{emitter.rebuild(operand.value)}]"
        return emitter.inject(operand.obj, "fact") if isinstance(operand, Fact) else emitter.rebuild(operand)

    def _go_on(self, emitter: Emitter, outcome: StepOutcome, *, is_compiled: bool) -> list[str]:
        returned = self._returned(emitter, outcome)
        if returned is not None:
            return [f"return {returned}"]
        variables = self._variables(outcome)
        unbound = tuple(name for name, value in variables.items() if value is None)
        stack = [entry.text if isinstance(entry, StepResult) else entry for entry in outcome.stack]
        entries, texts = stack_texts(emitter, stack)
        offset = self._frame.decoded.instructions[outcome.index].offset - self._origin.shift
        live = self._live[outcome.index - self._first]
        kept = tuple(name for name, value in variables.items() if name not in live and must_stay(value))
        point = ResumePoint(offset, tuple(entries), unbound, kept)
        _, shift = self._check(point)
        slots = [self._variable(emitter, variables.get(name)) for name in self._origin.slots]
        stack = [text if isinstance(text, str) else str(self._lasti(text, shift)) for text in texts]
        name = self._name("resume" if is_compiled else "rest", self._origin, point, is_compiled)
        arguments = ", ".join([*slots, *stack])
        # Plain Python lets go of what it has when it pleases.
        prepare = emitter.inject(Next, "Next") if is_compiled else emitter.inject(later, "later")
        following = f"{prepare}({name}{', ' * bool(arguments)}{arguments})"
        # What goes on lets go of tensors and iterators as it comes to their end, so nothing may hold them here. An
        # exception has been through this frame: if the frame held it, both would hold each other.
        passed = words_in(arguments)
        held = [name for name in (*emitter.tensors.values(), "failure", "result") if name in passed]
        held += self._in_order(emitter) + self._held_parameters(emitter, variables.values())
        forget = [f"del {', '.join(held)}"] if held else []
        if not self._is_continuation:
            return [f"after = {following}", *forget, f"return {emitter.inject(go_on, 'go_on')}(after)"]
        return [f"after = {following}", *forget, "return after"] if "failure" in held else [f"return {following}"]

    def _name(self, kind: str, origin: Origin, point: ResumePoint, is_compiled: bool = True) -> str:
        name = f"_{kind}_{self._tracer.options.tag}{next(self._numbers)}"
        self.continuations.append(Continuation(name, origin, point, is_compiled))
        return name

    def _check(self, point: ResumePoint) -> tuple[Any, int]:
        try:
            return resumed_code(self._origin.code, point, self._origin.closure_is_given)
        except NotResumable as error:
            self._tracer.stop("escape", str(error))

    def _variable(self, emitter: Emitter, value: Value | None) -> str:
        return "None" if value is None else emitter.rebuild(value)

    def _lasti(self, index: int, shift: int) -> int:
        """The place of an instruction as the interpreter keeps it while an exception passes a ``finally``."""
        offset = self._frame.decoded.instructions[index].offset - self._origin.shift
        return (offset + shift) // 2

    def _returned(self, emitter: Emitter, outcome: StepOutcome) -> str | None:
        """What the function returns when all that is left of it is to return something known."""
        stack = list(outcome.stack)
        for instruction in self._frame.decoded.instructions[outcome.index :]:
            if instruction.name in ("POP_TOP", "POP_ITER"):
                stack.pop()
            elif instruction.name in ("LOAD_CONST", "LOAD_SMALL_INT"):
                stack.append(ConstantValue(instruction.argval))
            elif instruction.name == "RETURN_CONST":
                return emitter.literal(instruction.argval)
            elif instruction.name == "RETURN_VALUE":
                entry = stack[-1]
                return entry.text if isinstance(entry, StepResult) else emitter.rebuild(entry)
            elif instruction.name != "NOP":
                return None
        return None


def _may_be_compiled(callee: Value | Fact | Named) -> bool:
    """Whether a call reaches Python code of the user's."""
    if not isinstance(callee, Value):
        return False
    target = callee.realize()
    if isinstance(target, MethodValue):
        target = target.function.realize()
    if isinstance(target, (FunctionValue, BoundClassMethod)) and target.function is torch_compat.APPLY_FUNCTION:
        return True  # which leads to the forward of a custom function
    if isinstance(target, FunctionValue):
        is_looked_into = policy.is_users(target.globals) or target.function is torch_compat.call_distributed
        return target.source is not None and is_looked_into
    return isinstance(target, ObjectValue)


def _is_written_here(callee: Value | Fact | Named) -> bool:
    """Whether a call is of a comprehension or a lambda."""
    function = callee.realize() if isinstance(callee, Value) else None
    return isinstance(function, FunctionValue) and function.code.co_name.startswith("<")


def _is_optimizer_step(callee: Any) -> bool:
    """Whether a call is a step of an optimizer of PyTorch's, which is told how to compute the loss."""
    target = callee.realize() if isinstance(callee, Value) else None
    owner = target.owner.realize() if isinstance(target, MethodValue) else None
    return isinstance(owner, ObjectValue) and isinstance(owner.obj, torch.optim.Optimizer)


def _before_prefixes(frame: Frame) -> int:
    """The instruction to go on at when only the frame can do it: with those that prepare a call in 3.11 and 3.12."""
    index = frame.index
    while index and frame.decoded.instructions[index - 1].name in ("PRECALL", "KW_NAMES"):
        index -= 1
    return index


Ending = Return | Stop


def _entered_contexts(tracer: Tracer) -> list[Any]:
    """The contexts to close and open again; settings that the graph changed stay as they are."""
    return [context for context in tracer.torch_state.open_contexts if isinstance(context, Value)]


def leave_modes(tracer: Tracer, grad_before: bool) -> None:
    """Close in the graph what is open where it ends; the program opens it again behind it."""
    if tracer.torch_state.saved_tensors_hooks or tracer.torch_state.hooks_disabled:
        tracer.stop("context_manager", "the break is where hooks for saved tensors are in force")
    if len(tracer.torch_state.default_devices) > (torch_compat.caller_device() is not None):
        tracer.stop("context_manager", "the break is where tensors are made on a device that a context says")
    contexts = _entered_contexts(tracer)
    for context in reversed(contexts):
        context.leave_in_graph(tracer)
    grad_inside = torch.is_grad_enabled()
    outside = [context.grad_outside for context in contexts if getattr(context, "grad_outside", None) is not None]
    grad_after = outside[0] if outside else grad_inside
    tracer.torch_state.end(grad_inside, None if grad_before == grad_after else grad_after)
    if grad_before != grad_after:
        tracer.graph.statement(torch_compat.set_grad_enabled, (grad_before,))


def _set_grad(emitter: Emitter, now: bool, wanted: bool) -> list[str]:
    return [] if now == wanted else [f"{emitter.inject(torch_compat.set_grad_enabled, 'set_grad_enabled')}({wanted})"]
