"""Looks at one call: from a function and its arguments to a Capture.

``capture`` interprets the function's bytecode on Values, then renders what it learned into a Program. It
changes nothing outside itself; torch's interpreter-wide state is put back whatever happens.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.breaks.endings import Ending, Return, Stop, leave_modes
from bothways.capture.bytecode import opcodes
from bothways.capture.bytecode.interpreter import Frame, Stopped
from bothways.capture.bytecode.lines import WHY_LEFT, instructions_left
from bothways.capture.bytecode.stack_labels import labels_of
from bothways.capture.bytecode.turns import in_loop
from bothways.capture.guards.guards import Guard, distinct_template
from bothways.capture.guards.replaced import replaced_below
from bothways.capture.guards.sources import Attr, Local, Source
from bothways.capture.overrides.overrides import without_class
from bothways.capture.program.guard_text import render_late
from bothways.capture.program.render import kept_by, render, render_guards
from bothways.capture.recording.copied_views import ViewIsSeen
from bothways.capture.recording.repeating import Unrepeatable
from bothways.capture.state.computed_again import ResultIsRemembered
from bothways.capture.state.options import CaptureOptions
from bothways.capture.tracer import Tracer
from bothways.capture.values.code.cells import external_cell
from bothways.capture.values.code.functions import FunctionValue
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.generators.generators import check_abandoned
from bothways.capture.values.hooks.grad_fns import asks_for_nodes, watch_nodes
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.writing.effects import ReadTooEarly
from bothways.errors import Break, Position, Unsupported
from bothways.runtime.listening import listening
from bothways.runtime.program import Check, Program
from bothways.runtime.resume import Continuation, origin_of
from bothways.runtime.size_history import SizeHistory
from bothways.runtime.tracing import who_traces

# Everything is loaded with the package: a process that forks while another thread loads a module waits for it for ever.
if opcodes.problem_of_python() is None:
    opcodes.handler_table()

# Up to here comparing every pair costs less than collecting ids.
PAIRWISE_LIMIT = 10

_CO_VARARGS, _CO_VARKEYWORDS = 4, 8

# Interpreter-wide state every program depends on. Each costs tens of nanoseconds a call.
STATE = (
    torch_compat.is_grad_enabled,
    torch_compat.is_any_autocast_enabled,
    torch_compat.is_inference_mode_enabled,
    torch_compat.get_default_dtype,
    torch_compat.function_mode_depth,
    torch_compat.dispatch_mode_depth,
    torch_compat.functorch_level,
    torch_compat.is_jit_tracing,
)


# Breaks that mean the function raises, so that the exception is the real one, or does what a module does once in its
# life: it then runs as plain Python, whatever the user said about breaks.
RAISED_BY_USER_CODE = frozenset({"exception_escapes", "op_failed", "lazy_module"})
# What PyTorch's own engine, or an optimizer of its own, does between two graphs: no Python of the user's is left to the
# interpreter there, so that it is no break where the caller wants none.
LEFT_TO_PYTORCH = frozenset({"backward", "closure"})


@dataclass
class Capture:
    """The result of looking at one frame; with ``escaped`` the program only says when the function raises."""

    program: Program
    graph: torch.fx.GraphModule | None
    guards: tuple[Guard, ...]
    inputs: list[Any]
    graph_key: str
    escaped: Break | None = None
    broke: Break | None = None
    continuations: tuple[Continuation, ...] = ()
    late: Callable[[], tuple[Check, ...]] | None = None

    def late_checks(self) -> tuple[Check, ...]:
        """What the backend had to assume about sizes; asking says that the program is complete."""
        return () if self.late is None else self.late()


class Interrupted(Exception):
    """The function does something that cannot be captured, at one of its own instructions."""

    def __init__(self, break_: Break, step: int, in_loop: bool = False, is_pytorchs: bool = False) -> None:
        super().__init__(str(break_))
        self.break_, self.step, self.in_loop, self.is_pytorchs = break_, step, in_loop, is_pytorchs

    @property
    def facts(self) -> tuple[Break, int, bool, bool]:
        return self.break_, self.step, self.in_loop, self.is_pytorchs


@dataclass(frozen=True)
class Request:
    """What is to be captured, and how."""

    function: types.FunctionType
    arguments: Mapping[str, object]
    depth_limit: int
    tag: str
    fullgraph: bool
    sizes: SizeHistory | None
    override_state: Any
    handled: BaseException | None  # by the caller
    disbelieved: Collection[Position] = ()
    turned: Collection[Position] = ()
    waits: bool = False
    left: Collection[Position] = ()
    assumes: bool = True
    postpones: bool = True
    copies_views: bool = True
    computes_again: bool = True

    def tracer(self) -> Tracer:
        continues = origin_of(self.function).shift > 0
        options = CaptureOptions(
            self.depth_limit, self.tag, self.fullgraph, self.assumes, continues, self.postpones,
            self.copies_views, self.computes_again, self.disbelieved, self.turned, self.left,
        )  # fmt: skip
        return Tracer(options, self.sizes, self.handled)


def capture(
    function: types.FunctionType,
    arguments: Mapping[str, object],
    *,
    depth_limit: int = 100,
    tag: str = "0_",
    fullgraph: bool = False,
    sizes: SizeHistory | None = None,
    disbelieved: Collection[Position] = (),
    turned: Collection[Position] = (),
    waits: bool = False,
    left: Collection[Position] = (),
) -> Capture:
    """Capture a call whose parameters are bound to ``arguments`` (``*args`` and ``**kwargs`` under their names).

    What cannot be captured is found by trying: a second attempt then stops before it, with everything in order. An
    operation that fails at one of the ``disbelieved`` places is known not to make the function raise; of the loops that
    are ``turned`` each turn is captured by itself. With ``waits``, a call that does what is done once in a life is not
    captured at all. What is called on the lines that are ``left`` is left to plain Python.
    """
    replaced = replaced_below()
    if replaced is not None:
        raise Unsupported(Break("builtin_replaced", f"{replaced} was replaced"))
    tracing = who_traces()
    if tracing is not None:
        raise Unsupported(Break("torch_mode", f"{tracing.name} is active"))
    overrides, handled = torch_compat.override_state(), sys.exception()
    known = disbelieved, turned, waits, left
    request = Request(function, arguments, depth_limit, tag, fullgraph, sizes, overrides, handled, *known)
    with torch_compat.without_function_modes(), listening():  # no mode or filter is to see what capture does
        while True:
            try:
                return _captured(request)
            except Unrepeatable:
                request = replace(request, assumes=False)
            except ReadTooEarly:
                request = replace(request, postpones=False)
            except ViewIsSeen:
                request = replace(request, copies_views=False)
            except ResultIsRemembered:
                request = replace(request, computes_again=False)


def _captured(request: Request) -> Capture:
    tracer = request.tracer()
    try:
        return _attempt(request, tracer)
    except Interrupted as interrupted:
        # Without frames, which hold the user's objects.
        reason = Interrupted(*interrupted.facts)
    except Unsupported:
        tracer.abandon()
        raise
    tracer.abandon()
    waits = request.waits and reason.break_.is_once and not reason.in_loop
    if waits or (request.fullgraph and not reason.is_pytorchs):
        raise Unsupported(reason.break_)
    return _until(request, reason)


def _until(request: Request, reason: Interrupted) -> Capture:
    """Capture up to the instruction that cannot be captured; up to an earlier one, if the state there is beyond us."""
    tracer = request.tracer()
    try:
        return _attempt(request, tracer, reason)
    except Unsupported as error:
        begun = [generator.made_at for generator in tracer.running.generators if generator.frame is not None]
        tracer.abandon()
        if not begun or min(begun) >= reason.step:
            raise Unsupported(replace(reason.break_, reason=f"{reason.break_.reason}; {error.break_.reason}")) from None
    # A generator that is under way cannot be handed over; made by plain Python it can.
    return _until(request, Interrupted(reason.break_, min(begun)))


def _attempt(request: Request, tracer: Tracer, stop: Interrupted | None = None) -> Capture:
    """Look at the function, up to where it is to stop."""
    function, arguments, tag = request.function, request.arguments, request.tag
    ending: Ending | Break
    device = torch_compat.caller_device()
    tracer.overrides.begin(tracer, request.override_state)
    state: list[tuple[Any, Any]] = [(query, query()) for query in STATE]
    if device is not None:
        tracer.torch_state.enter_device(device)
        state.append((torch_compat.caller_device, device))
    with _torch_state_kept(tracer), torch_compat.without_saved_tensor_hooks():
        grad_before = torch.is_grad_enabled()
        try:
            ending = _interpret(tracer, function, arguments, stop)
        except Unsupported as unsupported:
            if not _leaves_to_python(unsupported.break_, tracer) or unsupported.break_.is_once:
                raise
            ending = unsupported.break_
        else:
            leave_modes(tracer, grad_before)
    for query, answer in state:
        _guard_state(tracer, query, answer)
    if torch_compat.is_any_autocast_enabled():
        _guard_state(tracer, torch_compat.autocast_state, torch_compat.autocast_state())
    _guard_aliasing(tracer)
    tracer.assumptions.complete()
    tracer.definitions.guard(tracer)
    graph_key = f"_graph_{tag}".rstrip("_")
    if isinstance(ending, Break):
        program = render_guards(tracer, list(arguments), function.__name__)
        guards = tuple(tracer.assumptions.guards)
        tracer.abandon()
        return Capture(program, None, guards, [], graph_key, ending)
    try:
        program, outputs = render(tracer, list(arguments), ending, graph_key, function.__name__)
    except RecursionError:
        raise Unsupported(Break("escape", "what the function returns is nested too deeply")) from None
    tracer.graph.copied_views.check(outputs, tracer.graph.left_behind)
    graph = tracer.graph.finish(outputs) if tracer.graph.has_work else None
    inputs: list[Any] = [tracer.symbols.environment.values[symbol] for symbol in tracer.graph.symbols()]
    inputs += [without_class(value.obj) for value in tracer.graph.inputs if value.obj is not None]
    inputs += [taken.example for taken in tracer.graph.objects]
    late = _late_checks(tracer, list(arguments))
    guards = tuple(tracer.assumptions.guards)
    tracer.release()
    if late is None:
        tracer.leave()
    return Capture(
        program, graph, guards, inputs, graph_key,
        broke=stop.break_ if stop else None, continuations=tuple(ending.continuations),
        late=late,
    )  # fmt: skip


def _late_checks(tracer: Tracer, parameters: list[str]) -> Callable[[], tuple[Check, ...]] | None:
    if not tracer.symbols.sources:
        return None
    late = tracer.symbols.finish()

    def late_checks() -> tuple[Check, ...]:
        tracer.symbols.settle()
        checks = render_late(tracer, parameters, late)
        tracer.leave()
        return checks

    return late_checks


def _interpret(
    tracer: Tracer, function: types.FunctionType, arguments: Mapping[str, object], stop: Interrupted | None
) -> Ending:
    source = tracer.names.begin(function)
    value = FunctionValue.external(tracer, function, source, guarded=False, is_root=True)
    frame = Frame(tracer, value, _bind(tracer, function, arguments))
    frame.left = instructions_left(frame.code, tracer.options.left)
    if stop is not None:
        frame.stop_before = stop.step
    try:
        if function.__code__.co_flags & 0x20:
            raise Unsupported(Break("generator_escapes", "the function is a generator", frame.position()))
        if function.__code__.co_flags & 0x280:
            raise Unsupported(Break("async", "the function is a coroutine", frame.position()))
        ending: Ending = Return(_run(frame))
        check_abandoned(tracer, kept_by(tracer, ending))
        return ending
    except Stopped:
        assert stop is not None
        reason = stop.break_
        if asks_for_nodes(frame.code, reason):
            watch_nodes(tracer.graph.graph)
        is_watched, is_left = reason.code == "debugger", reason.reason == WHY_LEFT
        ending = Stop(tracer, frame, origin_of(function), is_watched=is_watched, is_left=is_left)
        check_abandoned(tracer, kept_by(tracer, ending))
        return ending
    except Raised as error:
        kind = error.value.python_type().__name__
        where = error.value.raised_at or frame.position()
        raise Unsupported(Break("exception_escapes", f"{kind} leaves the function", where)) from None
    except RecursionError:
        raise Unsupported(Break("too_deep", "the capture ran out of stack", frame.position())) from None


def _run(frame: Frame) -> Value:
    """Interpret the function; a break is one of the instruction of its own that led to it."""
    try:
        return frame.run_to_return()
    except Unsupported as unsupported:
        reason = unsupported.break_
        if _leaves_to_python(reason, frame.tracer) or reason.code == "too_long" or _calls_itself(frame, reason):
            raise
        began = frame.loops.stopped_at
        step = frame.steps - 1 if began is None else began
        looped = in_loop(frame.code, frame.index - 1)
        raise Interrupted(unsupported.break_, step, looped, _is_pytorchs(frame, reason)) from None


def _is_pytorchs(frame: Frame, reason: Break) -> bool:
    """Whether a break is that of what is PyTorch's to do, or of a loop around it, which asks for the next."""
    if reason.code in LEFT_TO_PYTORCH:
        return True
    asks = frame.decoded.instructions[frame.index - 1].name == "FOR_ITER" and reason.code == "object_unknown"
    return asks and frame.tracer.options.is_continuation


def _calls_itself(frame: Frame, reason: Break) -> bool:
    """Whether capture stopped in a recursion of the function: what it calls there would stop at the same place."""
    own = frame.code.co_filename, frame.code.co_qualname
    places = reason.where, *reason.stack
    return reason.code == "too_deep" and sum((at.filename, at.function) == own for at in places) > 1


def _leaves_to_python(reason: Break, tracer: Tracer) -> bool:
    """Whether the whole function runs as plain Python, whatever the user said about breaks."""
    return reason.code in RAISED_BY_USER_CODE or (tracer.options.fullgraph and reason.is_once)


def _bind(tracer: Tracer, function: types.FunctionType, arguments: Mapping[str, object]) -> dict[str, Value]:
    code = function.__code__
    labels = labels_of(function, arguments)
    bound: dict[str, Value] = {
        name: tracer.wrap(obj, Local(name, labels.get(name, ""))) for name, obj in arguments.items()
    }
    if origin_of(function).shift:
        # A continuation is given the cells themselves; a comprehension may have put one aside on the stack.
        cells = {name: arguments[name] for name in code.co_cellvars}
        for name in set(arguments).difference(origin_of(function).slots):
            if isinstance(arguments[name], types.CellType):
                tracer.guard("type({s0}) is {c0}", Local(name), types.CellType)
                cells[name] = arguments[name]
        bound.update({
            name: external_cell(tracer, cell, Local(name), Attr(Local(name), "cell_contents"))
            for name, cell in cells.items() if isinstance(cell, types.CellType)
        })  # fmt: skip
        return bound
    cursor = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & _CO_VARARGS:
        # The tuple and the dictionary are made by the call itself, so no other code can hold them.
        name = code.co_varnames[cursor]
        bound[name] = TupleValue.external(tracer, arguments[name], Local(name))  # type: ignore[arg-type]
        cursor += 1
    if code.co_flags & _CO_VARKEYWORDS:
        name = code.co_varnames[cursor]
        bound[name] = DictValue.external(tracer, arguments[name], Local(name))
    return bound


def _guard_state(tracer: Tracer, query: Any, answer: Any) -> None:
    source = tracer.inject(query, f"torch.{query.__name__}")
    if answer is True or answer is False:
        tracer.guard("{s0}()" if answer else "not {s0}()", source)
    elif not answer:
        tracer.guard("not {s0}()", source)
    else:
        tracer.guard("{s0}() == {c0}", source, answer)


def _guard_aliasing(tracer: Tracer) -> None:
    """Two inputs that were two tensors stay two; an object that was changed is none of the others."""
    for sources in _possible_aliases(tracer):
        if len(sources) <= PAIRWISE_LIMIT:
            for pair in itertools.combinations(sources, 2):
                tracer.guard("{s0} is not {s1}", *pair)
        else:
            tracer.guard(distinct_template(len(sources)), *sources)
    known = tracer.known_values()
    for changed in [*tracer.effects.values(), *(value for _, value in tracer.effects.left_to_python)]:
        if changed.source is None:
            continue
        for other in known:
            # Tensors are told apart above, where two could be one.
            if other is changed or other.source is None or isinstance(changed, (FunctionValue, TensorValue)):
                continue
            if type(other) is type(changed) and other.python_type() is changed.python_type():
                tracer.guard("{s0} is not {s1}", changed.source, other.source)


def _possible_aliases(tracer: Tracer) -> Iterator[list[Source]]:
    """Inputs that could be one tensor: those whose other guards say the same."""
    groups: dict[tuple[object, ...], list[Source]] = {}
    for value in tracer.graph.inputs:
        if value.obj is not None and value.source is not None:
            tensor = value.obj
            # Sizes that differ now may be equal at another call, where they are symbols.
            sizes = tensor.dim() if tracer.symbols.sources else (tensor.shape, tensor.stride())
            key = (type(tensor), tensor.dtype, sizes, tensor.device, tensor.requires_grad)
            groups.setdefault(key, []).append(value.source)
    return (sources for sources in groups.values() if len(sources) > 1)


@contextmanager
def _torch_state_kept(tracer: Tracer) -> Iterator[None]:
    grad_enabled = torch.is_grad_enabled()
    try:
        yield
    finally:
        for context in reversed(tracer.torch_state.open_contexts):
            context.leave()
        for setting in reversed(tracer.torch_state.changed_settings):
            setting.leave()
        torch_compat.set_grad_enabled(grad_enabled)  # last: leaving inference mode sets it as well
