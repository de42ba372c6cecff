"""Calls of Python functions: what the user said about the callee, what the policy says, then inlining."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture import standins
from bothways.capture.bytecode.interpreter import Frame
from bothways.capture.guards import policy
from bothways.capture.guards.policy import Treatment
from bothways.capture.guards.replaced import is_replaced
from bothways.capture.standins import jacobians
from bothways.capture.standins.optimizers import step_with_its_grad_mode
from bothways.capture.values.code.cells import CellValue
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments
from bothways.capture.values.core.handlers import HANDLERS
from bothways.capture.values.core.numbers import specialise_sizes
from bothways.capture.values.tensors import torch_functions
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.runtime.marks import Mark, mark_of

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.code.functions import FunctionValue

# Wrappers that keep books for other code, the variables that hold what they wrap, and what is called with these
# instead, if not the wrapped function itself. PyTorch's own compiler puts the first two around nn.Module's methods when
# a process uses it, too; the third keeps it out of functions that bothways does look into.
LOOKED_THROUGH: dict[str, tuple[tuple[str, ...], Callable[..., Any] | None]] = {
    "install_generation_tagging_init.<locals>.patched_init": (("init",), None),
    "install_generation_tagging_init.<locals>.patched_setstate": (("setstate",), None),
    "_disable_dynamo.<locals>.inner": (("fn",), None),
    "_script_if_tracing.<locals>.wrapper": (("fn",), None),
    "_use_grad_for_differentiable.<locals>._use_grad": (("func",), step_with_its_grad_mode),
    "jacrev.<locals>.wrapper_fn": (("func", "argnums", "has_aux", "chunk_size"), jacobians.by_rows),
    "jacfwd.<locals>.wrapper_fn": (("func", "argnums", "has_aux", "randomness"), jacobians.by_columns),
}
# What PyTorch's compiler puts around methods of optimizers when a process uses it: it means that compiler only. Around
# a function of the user's the same wrapper is the user's word.
KEPT_FROM_ANOTHER = {"DisableContext.__call__.<locals>._fn": (("fn",), None)}

# Methods of tensors that are written in Python; a handler is given the function.
TENSOR_METHODS: dict[Any, str] = {
    function: name for name, function in vars(torch.Tensor).items() if isinstance(function, types.FunctionType)
}

_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def call_function(tracer: Tracer, function: FunctionValue, args: Args, kwargs: Kwargs) -> Value:
    """Capture a call of a Python function."""
    real = function.function
    if real is not None:
        marked = mark_of(real)
        if marked is not None:
            return _call_marked(tracer, function, marked, args, kwargs)
        if policy.is_library_module(policy.module_of(real)) and is_replaced(real):
            return inline(tracer, function, args, kwargs)
        handler = HANDLERS.get(real)
        if handler is not None:
            return handler(tracer, args, kwargs)
        wrapper = real.__code__.co_qualname  # the function itself bears the name of what it wraps
        behind = LOOKED_THROUGH.get(wrapper)
        if behind is None and policy.module_of(real).startswith("torch.optim."):
            behind = KEPT_FROM_ANOTHER.get(wrapper)
        if behind is not None:
            return _call_behind(tracer, function, *behind, args, kwargs)
        stand_in = standins.find(real)
        if stand_in is not None:
            return tracer.inline(stand_in, args, kwargs)
        if policy.is_debugger(real):
            tracer.stop("debugger", f"{real.__module__}.{real.__qualname__} waits for a person")
        treatment = policy.treatment_of(real)
        if treatment is Treatment.GRAPH:
            return _call_operation(tracer, function, args, kwargs)
        if treatment is Treatment.BREAK:
            tracer.stop("call_unknown", f"{real.__module__}.{real.__qualname__} is not looked into")
    return inline(tracer, function, args, kwargs)


def _call_operation(tracer: Tracer, function: FunctionValue, args: Args, kwargs: Kwargs) -> Value:
    """Call a function of PyTorch's that is one operation; one that is overridden asks for that itself."""
    real = function.function
    assert real is not None
    if tracer.overrides.may_apply_to([*args, *kwargs.values()]) or not tracer.definitions.is_pristine(real):
        return inline(tracer, function, args, kwargs)
    tensor = args[0].realize() if args else None
    name = TENSOR_METHODS.get(real)
    if name is not None and isinstance(tensor, TensorValue):
        return tensor.call_method(tracer, name, args[1:], kwargs)
    return torch_functions.call_in_graph(tracer, real, args, kwargs)


def _call_behind(
    tracer: Tracer,
    function: FunctionValue,
    variables: tuple[str, ...],
    instead: Callable[..., Any] | None,
    args: Args,
    kwargs: Kwargs,
) -> Value:
    """Call what a wrapper's closure holds instead of the wrapper."""
    held = []
    for variable in variables:
        cell = function.closure[function.code.co_freevars.index(variable)]
        assert isinstance(cell, CellValue) and cell.content is not None
        held.append(cell.content)
    if instead is not None:
        return tracer.inline(instead, [*held, *args], kwargs)
    return held[0].realize().call(tracer, args, kwargs)


def _call_marked(tracer: Tracer, function: FunctionValue, marked: Mark, args: Args, kwargs: Kwargs) -> Value:
    real = function.function
    assert real is not None
    if marked is Mark.IN_GRAPH:
        tracer.overrides.refuse_modes(tracer, function.name)
        return torch_functions.call_in_graph(tracer, real, args, kwargs)
    if marked is Mark.IS_COMPILING:
        return ConstantValue(True)
    if marked is Mark.CONSTANT_RESULT:
        positional, keywords = constant_arguments(tracer, args, kwargs)
        return linked.library_value(tracer, tracer.run_const(real, *positional, **keywords))
    if marked is Mark.STATIC_SIZES:
        return specialise_sizes(tracer, *args, **kwargs)
    if marked is Mark.GRAPH_BREAK:
        tracer.stop("graph_break", "bothways.graph_break() was called")
    tracer.stop("call_disabled", f"{real.__qualname__} is marked with bothways.disable")


def inline(tracer: Tracer, function: FunctionValue, args: Args, kwargs: Kwargs) -> Value:
    """Interpret the callee in a frame of its own; a generator function gives a suspended frame."""
    if function.code.co_flags & _COROUTINE:
        tracer.stop("async", f"{function.name} is a coroutine")
    if len(tracer.running.frames) >= tracer.options.depth_limit:
        tracer.stop("too_deep", f"{function.name} is called {len(tracer.running.frames)} calls deep")
    frame = Frame(tracer, function, function.bind(tracer, args, kwargs))
    if function.code.co_flags & inspect.CO_GENERATOR:
        return linked.GeneratorValue(tracer, frame)
    return frame.run_to_return()
