"""``loss.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad`` in captured code.

The graph's history says beforehand what the backward comes to (``autograd_history``); where that cannot be told the
capture stops, and the call runs on PyTorch's engine. What is done then is written down by ``backward_runs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bothways import torch_compat
from bothways.capture.standins import gradients as standins
from bothways.capture.values.autograd.backward_runs import BackwardCall, BackwardRun, history_of
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import NONE, ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.tensors.tensors import SPECIAL_METHODS, TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


IMPLICIT = "grad can be implicitly created only for scalar outputs"
IMPLICIT_REAL = "grad can be implicitly created only for real scalar outputs but got {}"
NO_INPUTS = "`inputs` argument to `backward()` cannot be empty."
METHOD = ("gradient", "retain_graph", "create_graph", "inputs")
BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
GRAD = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused",
    "is_grads_batched", "materialize_grads",
)  # fmt: skip


def _backward_method(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    arguments = _named(tracer, METHOD, args, kwargs)
    return _backward(tracer, [tensor], [arguments.get("gradient", NONE)], arguments)


SPECIAL_METHODS["backward"] = _backward_method


@handles(torch.Tensor.backward)
def _backward_of(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return protocols.call(tracer, protocols.get_attr(tracer, args[0], "backward"), list(args[1:]), kwargs)


@handles(torch.autograd.backward)
def _autograd_backward(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    arguments = _named(tracer, BACKWARD, args, kwargs)
    if not is_none(arguments.get("grad_variables", NONE)):
        tracer.stop("backward", "torch.autograd.backward is called with grad_variables, which is deprecated")
    tensors = _tensors(tracer, arguments["tensors"])
    return _backward(tracer, tensors, _several(tracer, arguments.get("grad_tensors", NONE), len(tensors)), arguments)


def _backward(tracer: Tracer, tensors: list[TensorValue], tangents: Sequence[Value], arguments: Kwargs) -> Value:
    call = _call(tracer, tensors, tangents, arguments)
    inputs = arguments.get("inputs", NONE)
    wanted = None if is_none(inputs) else _tensors(tracer, inputs)
    if wanted == []:
        tracer.throw(RuntimeError, NO_INPUTS)
    BackwardRun(tracer, call, wanted).accumulate()
    return NONE


@handles(torch.autograd.grad)
def _grad(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    arguments = _named(tracer, GRAD, args, kwargs)
    if _flag(tracer, arguments, "is_grads_batched"):
        tracer.stop("backward", "torch.autograd.grad is called in a way that is not captured")
    outputs, inputs = _tensors(tracer, arguments["outputs"]), _tensors(tracer, arguments["inputs"])
    call = _call(tracer, outputs, _several(tracer, arguments.get("grad_outputs", NONE), len(outputs)), arguments)
    materialize = _flag(tracer, arguments, "materialize_grads")
    allowed = arguments.get("allow_unused", NONE)
    if materialize and not is_none(allowed) and not protocols.truth(tracer, allowed.realize()):
        tracer.stop("op_failed", "allow_unused=False contradicts materialize_grads=True")
    unused = materialize or _flag(tracer, arguments, "allow_unused")
    results: list[Value] = []
    for gradient, tensor in zip(BackwardRun(tracer, call, inputs).gradients(), inputs, strict=True):
        if gradient is None and not unused:
            tracer.stop("op_failed", torch_compat.UNUSED)
        if gradient is None and materialize:
            results.append(tracer.inline(standins.no_gradient, [tensor, ConstantValue(call.create_graph)], {}))
        else:
            results.append(NONE if gradient is None else gradient)
    return TupleValue(results)


def _call(tracer: Tracer, roots: list[TensorValue], tangents: Sequence[Value], arguments: Kwargs) -> BackwardCall:
    """The arguments that all three ways to call have in common."""
    tracer.graph.levels.refuse_all("a backward is called")
    create_graph = _flag(tracer, arguments, "create_graph")
    retained = arguments.get("retain_graph", NONE)
    retain_graph = create_graph if is_none(retained) else protocols.truth(tracer, retained.realize())
    complete: list[TensorValue] = []
    for root, tangent in zip(roots, tangents, strict=True):
        value = tangent.realize()
        if isinstance(value, TensorValue):
            if (value.fake.shape, value.fake.dtype) != (root.fake.shape, root.fake.dtype):
                tracer.stop("op_failed", "a gradient is given that is of another shape or dtype than the tensor")
        else:
            if root.fake.requires_grad and root.fake.meta.numel() != 1:
                tracer.throw(RuntimeError, IMPLICIT)
            if root.fake.requires_grad and not root.fake.dtype.is_floating_point:
                tracer.throw(RuntimeError, IMPLICIT_REAL.format(root.fake.dtype))
            value = tracer.inline(standins.first_gradient, [root], {}).realize()
        assert isinstance(value, TensorValue)
        complete.append(value)
    history_of(tracer)
    return BackwardCall(roots, complete, retain_graph, create_graph)


# Arguments.


def _named(tracer: Tracer, names: Sequence[str], args: Sequence[Value], kwargs: Kwargs) -> Kwargs:
    if len(args) > len(names) or not set(names).issuperset(kwargs):
        tracer.stop("op_failed", "a backward is called with arguments that it does not take")
    return dict(zip(names, args, strict=False)) | kwargs


def _flag(tracer: Tracer, arguments: Kwargs, name: str) -> bool:
    return name in arguments and protocols.truth(tracer, arguments[name].realize())


def _tensors(tracer: Tracer, value: Value) -> list[TensorValue]:
    value = value.realize()
    items = [value] if isinstance(value, TensorValue) else [item.realize() for item in protocols.unpack(tracer, value)]
    if not all(isinstance(item, TensorValue) for item in items):
        tracer.stop("backward", "a backward is asked of something that is no tensor")
    return items  # type: ignore[return-value]


def _several(tracer: Tracer, value: Value, count: int) -> list[Value]:
    value = value.realize()
    if is_none(value):
        return [NONE] * count
    tangents: list[Value] = [value] if isinstance(value, TensorValue) else protocols.unpack(tracer, value)
    if len(tangents) != count:
        tracer.stop("op_failed", "there are not as many gradients as tensors")
    return tangents
