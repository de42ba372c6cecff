"""Looks at one call: from a function and its arguments to a Capture.

``capture`` interprets the function's bytecode on Values, then renders what it learned into a Program. It
changes nothing outside itself; torch's interpreter-wide state is put back whatever happens.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.guards import Guard
from bothways.capture.interpreter import Frame
from bothways.capture.render import render, render_guards
from bothways.capture.sources import Local, Source
from bothways.capture.tracer import Observed, Tracer
from bothways.capture.values.base import Value
from bothways.capture.values.containers import TupleValue
from bothways.capture.values.dicts import DictValue
from bothways.capture.values.functions import FunctionValue
from bothways.capture.values.generators import check_abandoned
from bothways.capture.values.tensors import TensorValue
from bothways.errors import Break, Unsupported
from bothways.runtime.program import Program

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
)
MODES = (torch_compat.function_mode_depth, torch_compat.dispatch_mode_depth, torch_compat.functorch_level)


# Breaks that mean the function raises, so that the exception is the real one, or does what a module does once in its
# life: it then runs as plain Python, whatever the user said about breaks.
RAISED_BY_USER_CODE = frozenset({"exception_escapes", "op_failed", "lazy_module"})


@dataclass
class Capture:
    """The result of looking at one frame; with ``escaped`` the program only says when the function raises."""

    program: Program
    graph: torch.fx.GraphModule | None
    guards: tuple[Guard, ...]
    inputs: list[Any]
    graph_key: str
    escaped: Break | None = None


def capture(
    function: types.FunctionType,
    arguments: Mapping[str, object],
    *,
    depth_limit: int = 100,
    tag: str = "0_",
    fullgraph: bool = False,
) -> Capture:
    """Capture a call whose parameters are bound to ``arguments`` (``*args`` and ``**kwargs`` under their names)."""
    tracer = Tracer(depth_limit, tag)
    tracer.fullgraph = fullgraph
    device = torch_compat.caller_device()
    if any(active() for active in (MODES if device is None else MODES[1:])):
        raise Unsupported(Break("torch_mode", "a torch function mode, dispatch mode or function transform is active"))
    state: list[tuple[Any, Any]] = [(query, query()) for query in STATE]
    if device is not None:
        tracer.default_devices.append(device)
        state.append((torch_compat.caller_device, device))
    with _torch_state_kept(tracer), torch_compat.without_saved_tensor_hooks():
        try:
            with nullcontext() if device is None else torch_compat.without_function_modes():
                output: Value | Break = _interpret(tracer, function, arguments)
        except Unsupported as unsupported:
            if unsupported.break_.code not in RAISED_BY_USER_CODE:
                raise
            output = unsupported.break_
    for query, answer in state:
        _guard_state(tracer, query, answer)
    if torch_compat.is_any_autocast_enabled():
        _guard_state(tracer, torch_compat.autocast_state, torch_compat.autocast_state())
    _guard_aliasing(tracer)
    tracer.guard_expected()
    graph_key = f"_graph_{tag}".rstrip("_")
    if isinstance(output, Break):
        program = render_guards(tracer, list(arguments), function.__name__)
        return Capture(program, None, tuple(tracer.guards), [], graph_key, output)
    try:
        program, outputs = render(tracer, list(arguments), output, graph_key, function.__name__)
    except RecursionError:
        raise Unsupported(Break("escape", "what the function returns is nested too deeply")) from None
    graph = tracer.graph.finish(outputs) if tracer.graph.op_count else None
    inputs: list[Any] = [value.obj for value in tracer.graph.inputs if value.obj is not None]
    inputs += [taken.example for taken in tracer.graph.objects]
    return Capture(program, graph, tuple(tracer.guards), inputs, graph_key)


def _interpret(tracer: Tracer, function: types.FunctionType, arguments: Mapping[str, object]) -> Value:
    source = tracer.inject(function, function.__qualname__)
    value = FunctionValue.external(tracer, function, source, guarded=False)
    frame = Frame(tracer, value, _bind(tracer, function.__code__, arguments))
    try:
        if function.__code__.co_flags & 0x20:
            raise Unsupported(Break("generator_escapes", "the function is a generator", frame.position()))
        if function.__code__.co_flags & 0x280:
            raise Unsupported(Break("async", "the function is a coroutine", frame.position()))
        output = frame.run_to_return()
        check_abandoned(tracer)
        return output
    except Observed as observed:
        kind = observed.value.python_type().__name__
        where = observed.value.raised_at or frame.position()
        raise Unsupported(Break("exception_escapes", f"{kind} leaves the function", where)) from None
    except RecursionError:
        raise Unsupported(Break("too_deep", "the capture ran out of stack", frame.position())) from None


def _bind(tracer: Tracer, code: types.CodeType, arguments: Mapping[str, object]) -> dict[str, Value]:
    bound: dict[str, Value] = {name: tracer.wrap(obj, Local(name)) for name, obj in arguments.items()}
    cursor = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & _CO_VARARGS:
        # The tuple and the dictionary are made by the call itself, so nobody else can hold them.
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
            ids = ", ".join(f"id({{s{index}}})" for index in range(len(sources)))
            tracer.guard(f"len({{{{{ids}}}}}) == {len(sources)}", *sources)
    known = tracer.known_values()
    for changed in [*tracer.effects.values(), *(value for _, value in tracer.left_to_python)]:
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
            key = (type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad)
            groups.setdefault(key, []).append(value.source)
    return (sources for sources in groups.values() if len(sources) > 1)


@contextmanager
def _torch_state_kept(tracer: Tracer) -> Iterator[None]:
    grad_enabled = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch_compat.set_grad_enabled(grad_enabled)
        for context in reversed(tracer.open_contexts):
            context.leave()
