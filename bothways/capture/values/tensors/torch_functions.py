"""Functions of the torch namespace: one node each, except those that ask about the interpreter or the types.

``HANDLERS`` holds what is answered at capture time; everything else that is a tensor operation goes through
``call_in_graph``.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.guards import policy
from bothways.capture.overrides.overrides import PASSED, PLAIN_CLASSES, overridden
from bothways.capture.standins.contexts import decorate, decorate_with_factory
from bothways.capture.standins.optimizers import (
    addcdiv_by_tensors,
    lerp_by_tensor,
    lerp_without_counting,
    powers_of_tensor,
)
from bothways.capture.values.code.functions import FunctionValue, MethodValue
from bothways.capture.values.code.partials import PartialValue
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.sequences import SequenceValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments, constant_value
from bothways.capture.values.core.handlers import HANDLERS, Handler, handles
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.core.numbers import NumberValue, OpenTruth
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.fake.lists import leaves_versions
from bothways.grad import trace_wrapped
from bothways.runtime.marks import Mark, mark_of

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Pure functions of types and sizes: computed at capture time from constants.
FOLDED: tuple[Any, ...] = (
    torch.promote_types,
    torch.can_cast,
    torch.broadcast_shapes,
    torch.cuda.is_available,
    torch_compat.get_privateuse1_backend_name,
    typing.get_args,
    typing.get_origin,
)
# Questions about interpreter-wide state: answered at capture time, and asked again by a guard.
GUARDED: tuple[Any, ...] = (
    torch.get_default_dtype,
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled,
    torch.get_autocast_dtype,
    torch.get_autocast_gpu_dtype,
    torch.get_autocast_cpu_dtype,
    torch.is_autocast_cache_enabled,
    torch_compat.is_any_autocast_enabled,
    torch.amp.is_autocast_available,
    torch.are_deterministic_algorithms_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    torch.distributed.is_available,
    torch.backends.mha.get_fastpath_enabled,
    torch.is_autocast_cpu_enabled,
    torch.distributed.is_initialized,
    torch_compat.get_cublas_allow_tf32,
    torch_compat.is_checkpoint_valid,
    torch.get_float32_matmul_precision,
    torch.get_num_threads,
    torch_compat.get_sdp_priority,
    *torch_compat.SDP_SWITCHES.values(),
)
# Answers that are the same in every capture.
CONSTANT_ANSWERS: dict[Any, Any] = {
    torch.jit.is_scripting: False,
    torch.jit.is_tracing: False,
    torch_compat.is_scripting: False,
    torch_compat.log_api_usage_once: None,
    torch_compat.is_make_fx_tracing: False,
    torch_compat.get_tracing_state: None,
    torch_compat.is_jit_tracing: False,
    torch.compiler.is_compiling: True,
    torch.compiler.is_dynamo_compiling: True,
    torch.compiler.is_exporting: False,
    torch_compat.is_fx_tracing: False,
    torch_compat.are_transforms_active: False,  # a program is only used outside of them
}


def call_in_graph(
    tracer: Tracer, function: Any, args: Args, kwargs: Kwargs, run: Callable[..., Any] | None = None
) -> Value:
    """Record a call as one node; ``run`` computes the same on fakes, where the function itself cannot."""
    keywords = on_default_device(tracer, function, kwargs)
    return tracer.graph.op("call_function", function, run or function, args, keywords)


def on_default_device(tracer: Tracer, function: Any, kwargs: Kwargs) -> Kwargs:
    """The keywords of a call, with the device that a surrounding ``with torch.device(…)`` says."""
    device = kwargs.get("device")
    if not tracer.torch_state.default_devices or function not in torch_compat.device_constructors():
        return kwargs
    on_default = {**kwargs, "device": ConstantValue(tracer.torch_state.default_devices[-1])}
    return kwargs if device is not None and not is_none(device) else on_default


class TorchFunctionValue(Value):
    """A C function of torch's that is one operation of the graph."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def python_type(self) -> type:
        return type(self.function)

    def constant(self) -> Any:
        return self.function

    def identity(self) -> object:
        return self.function

    def hash_key(self, tracer: Tracer) -> Any:
        return self.function

    def describe(self) -> str:
        return f"the function {getattr(self.function, '__name__', self.function)}"

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if mark_of(self.function) is Mark.DISABLED:
            tracer.stop("call_disabled", f"{self.describe()} is marked with bothways.disable")
        if self._may_apply_to(tracer):
            result = overridden(tracer, self.function, args, kwargs)
            if result is not PASSED:
                return result
        handler = HANDLERS.get(self.function)
        if handler is not None:
            return handler(tracer, args, kwargs)
        return call_in_graph(tracer, self.function, args, kwargs)

    def _may_apply_to(self, tracer: Tracer) -> bool:
        """Whether modes or classes may override the call; to ask is to call the function where they do not."""
        if mark_of(self.function) is Mark.IN_GRAPH:
            tracer.overrides.refuse_modes(tracer, self.describe())
            return False
        sets_grad_mode = self.function is torch_compat.set_grad_enabled
        return policy.is_graph_function(self.function) or (sets_grad_mode and tracer.overrides.heeds_modes)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return constant_value(tracer.run_const(getattr, self.function, name), tracer)

    def rebuild(self, emitter: Any) -> str:
        return str(emitter.inject(self.function, getattr(self.function, "__name__", "function")))


def _folded(function: Callable[..., Any]) -> Handler:
    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        positional, keywords = constant_arguments(tracer, args, kwargs)
        return constant_value(tracer.run_const(function, *positional, **keywords), tracer)

    return handler


def _guarded(function: Callable[..., Any]) -> Handler:
    fold = _folded(function)

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        answer = fold(tracer, args, kwargs)
        # Inside a context of its own, or after a setting of its own, the program asks about what it did itself.
        if tracer.torch_state.is_as_at_entry:
            positional, keywords = constant_arguments(tracer, args, kwargs)
            names = [*keywords]
            slots = [f"{{c{index}}}" for index in range(len(positional))]
            slots += [f"{name}={{c{len(positional) + index}}}" for index, name in enumerate(names)]
            template = f"{{s0}}({', '.join(slots)}) == {{c{len(slots)}}}"
            source = tracer.inject(function, f"torch.{function.__name__}")
            tracer.guard(template, source, *positional, *keywords.values(), answer.constant())
        return answer

    return handler


def _answer(content: Any) -> Handler:
    return lambda tracer, args, kwargs: ConstantValue(content)


HANDLERS.update({function: _folded(function) for function in FOLDED})
HANDLERS.update({function: _guarded(function) for function in GUARDED})
HANDLERS.update({function: _answer(content) for function, content in CONSTANT_ANSWERS.items()})


@handles(functools.partial)
def _partial(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return PartialValue.make(tracer, [*args], kwargs)


@handles(inspect.isclass)
def _is_class(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return ConstantValue(issubclass(args[0].realize().python_type(), type))


@handles(inspect.signature)
def _signature(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    asked = args[0].realize() if args else None
    function = asked.function.realize() if isinstance(asked, MethodValue) else asked
    if not isinstance(function, FunctionValue) or function.function is None or function.fields or kwargs:
        tracer.stop("call_unknown", "inspect.signature is asked about something else than a function")
    function.hash_key(tracer)  # defaults and annotations belong to the very function
    bound = function.function if asked is function else types.MethodType(function.function, object())
    return linked.library_value(tracer, tracer.run_const(inspect.signature, bound))


@handles(torch_compat.context_decorator)
def _context_decorator(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """``@torch.no_grad()`` on a function defined inside: PyTorch's own way inspects what it decorates."""
    context, function = args[0].realize(), args[1].realize()
    if not isinstance(function, FunctionValue) or function.code.co_flags & inspect.CO_GENERATOR:
        tracer.stop("call_unknown", f"a context manager decorates {function.describe()}")
    makes_contexts = isinstance(context, (FunctionValue, MethodValue))
    return tracer.inline(decorate_with_factory if makes_contexts else decorate, [context, function], {})


@handles(torch.is_tensor)
def _is_tensor(tracer: Tracer, obj: Value, /) -> Value:
    return ConstantValue(isinstance(obj.realize(), TensorValue))


@handles(torch.is_grad_enabled)
def _is_grad_enabled(tracer: Tracer, /) -> Value:
    # Capture runs under the program's own grad mode, which starts as the caller's (guarded) mode.
    frames = tracer.running.frames
    if not frames or frames[-1].globals.get("__name__") != torch.autograd.grad_mode.__name__:
        tracer.assumptions.ask("is_grad_enabled")
    return ConstantValue(torch.is_grad_enabled())


@handles(torch_compat.set_grad_enabled)
def _set_grad_enabled(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    enabled = protocols.as_constant(tracer, args[0])
    if type(enabled) is not bool:
        tracer.run_const(torch_compat.set_grad_enabled, enabled)  # raises what PyTorch says about that
    by_library = policy.is_library_module(policy.name_of(tracer.running.frames[-1].globals))
    if enabled != torch.is_grad_enabled() or not by_library:  # the library's contexts often change nothing
        torch_compat.set_grad_enabled(enabled)
        tracer.graph.statement(torch_compat.set_grad_enabled, (enabled,))
    return ConstantValue(None)


@handles(torch_compat.APPLY_FUNCTION)
def _apply_function(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    tracer.overrides.refuse_modes(tracer, "a custom function")
    if any(isinstance(arg, TensorValue) and arg.cls not in PLAIN_CLASSES for arg in (arg.realize() for arg in args)):
        tracer.stop("tensor_subclass", "a custom function is given a tensor of a class of the user's")
    return linked.apply_autograd_function(tracer, [*args], kwargs)


@handles(trace_wrapped)
def _trace_wrapped(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    others = dict(kwargs)
    if "fn" not in others:
        tracer.throw(TypeError, "trace_wrapped() missing 1 required keyword-only argument: 'fn'")
    return protocols.call(tracer, others.pop("fn"), list(args), others)


@handles(torch_compat.check)
def _check(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    condition = args[0].realize() if args else kwargs["cond"].realize()
    if isinstance(condition, OpenTruth):
        condition.assume(tracer)
    elif not isinstance(condition, ConstantValue) or not protocols.truth(tracer, condition):
        tracer.stop("call_unknown", "torch._check of what is not known to hold")
    return ConstantValue(None)


@handles(torch_compat.check_is_size)
def _check_is_size(tracer: Tracer, /, i: Value, message: Value | None = None, *, max: Value | None = None) -> Value:
    _check(tracer, protocols.compare(tracer, ">=", i, ConstantValue(0)))
    if max is None or is_none(max):
        return ConstantValue(None)
    return _check(tracer, protocols.compare(tracer, "<=", i, max))


@handles(torch.jit.annotate, typing.cast)
def _annotate(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return args[1]


@handles(torch_compat.foreach_addcdiv_)
def _foreach_addcdiv_(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    by_tensors = len(args) == 4 and any(isinstance(value.realize(), TensorValue) for value in args[3].realize().parts())
    if by_tensors:
        return tracer.inline(addcdiv_by_tensors, [*args], kwargs)
    return call_in_graph(tracer, torch_compat.foreach_addcdiv_, [*args], kwargs)


@handles(torch_compat.foreach_lerp_)
def _foreach_lerp_(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if len(args) == 3 and isinstance(args[2].realize(), TensorValue):
        lists = [_fakes(tracer, value) for value in args[:2]]
        counts = torch.is_grad_enabled() or not leaves_versions(torch_compat.foreach_lerp_.__name__, *lists)
        return tracer.inline(lerp_by_tensor if counts else lerp_without_counting, [*args], kwargs)
    return call_in_graph(tracer, torch_compat.foreach_lerp_, [*args], kwargs)


def _fakes(tracer: Tracer, values: Value) -> list[torch.Tensor]:
    listed = values.realize()
    parts = listed.items_for_graph(tracer) if isinstance(listed, SequenceValue) else []
    return [part.fake.meta for part in [part.realize() for part in parts] if isinstance(part, TensorValue)]


@handles(torch_compat.foreach_pow)
def _foreach_pow(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if len(args) == 2 and isinstance(args[0].realize(), TensorValue):
        return tracer.inline(powers_of_tensor, [*args], kwargs)
    return call_in_graph(tracer, torch_compat.foreach_pow, [*args], kwargs)


@handles(torch.overrides.is_tensor_like)
def _is_tensor_like(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    kind = args[0].realize().python_type()
    return ConstantValue(issubclass(kind, torch.Tensor) or hasattr(kind, "__torch_function__"))


@handles(torch_compat.unwrap_optional)
def _unwrap_optional(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if is_none(args[0]):
        tracer.throw(AssertionError, "Unwrapping null optional")
    return args[0]


@handles(torch.numel)
def _numel(tracer: Tracer, input: Value) -> Value:
    return protocols.call_attr(tracer, input, "numel")


@handles(torch.Size)
def _size(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if len(args) > 1 or kwargs:
        positional, keywords = constant_arguments(tracer, [*args], kwargs)
        return constant_value(tracer.run_const(torch.Size, *positional, **keywords))
    sizes = [size for arg in args for size in protocols.unpack(tracer, arg)]
    if any(isinstance(size.realize(), NumberValue) for size in sizes):
        return TupleValue(sizes, torch.Size)
    return constant_value(tracer.run_const(torch.Size, [protocols.as_constant(tracer, size) for size in sizes]))


def _from_data(function: Any) -> Handler:
    """``torch.tensor`` and ``torch.as_tensor``: of constants, or of one whole tensor."""

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if not args and "data" not in kwargs:
            tracer.run_const(function)
        data = args[0].realize() if args else kwargs["data"].realize()
        if not isinstance(data, TensorValue) and not data.is_constant:
            tracer.stop("tensor_value", f"torch.{function.__name__} reads the data of the tensors it is given")
        return call_in_graph(tracer, function, args, kwargs)

    return handler


HANDLERS.update({function: _from_data(function) for function in (torch.tensor, torch.as_tensor)})
