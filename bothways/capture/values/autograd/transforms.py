"""What ``torch.func.grad`` and ``vjp`` need of the graph: leaves, gradients, and what of a history is the outside's.

PyTorch keeps the history of each transform apart. A graph has one history, so a tensor that leaves a transform is
detached where all that it leads to are the transform's own leaves, and stays as it is where it leads elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bothways import torch_compat
from bothways.capture.standins import transforms as standins
from bothways.capture.standins.gradients import first_gradient
from bothways.capture.values.autograd.backward_runs import BackwardCall, BackwardRun, history_of
from bothways.capture.values.collections.containers import ListValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import NONE, ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


@handles(standins.begin)
def _begin(tracer: Tracer, /) -> Value:
    if torch.is_inference_mode_enabled() or tracer.torch_state.saved_tensors_hooks:
        tracer.stop("transform", "a transform is called in inference mode, or where hooks see what is saved")
    refuse_hooks(tracer)
    if tracer.graph.levels.mapping:
        tracer.stop("transform", "vjp is called inside of vmap")
    return ConstantValue(tracer.graph.levels.begin())


def refuse_hooks(tracer: Tracer) -> None:
    """PyTorch refuses a transform where the caller has hooks that see what is saved."""
    if torch_compat.top_saved_tensors_hooks() is None:
        tracer.guard("{c0}() is None", torch_compat.top_saved_tensors_hooks)
        return
    tracer.guard("{c0}() is not None", torch_compat.top_saved_tensors_hooks)
    tracer.stop("op_failed", "transforms are refused where hooks see what is saved")


@handles(standins.again)
def _again(tracer: Tracer, /, number: Value, outputs: Value) -> Value:
    nodes = {_tensor(value).node for value in protocols.unpack(tracer, outputs)}
    tracer.graph.levels.again(number.realize().constant(), nodes)
    return NONE


@handles(standins.end)
def _end(tracer: Tracer, /) -> Value:
    tracer.graph.levels.end()
    return NONE


@handles(standins.refuse)
def _refuse(tracer: Tracer, /) -> Value:
    tracer.stop("op_failed", "a transform refuses what it is called with, or what its function gives")


@handles(standins.inside)
def _inside(tracer: Tracer, /, tensor: Value) -> Value:
    own = tensor.realize()
    if not isinstance(own, TensorValue):
        tracer.stop("op_failed", "a transform is asked for the gradient of something that is no tensor")
    if own.overrides_functions():
        tracer.stop("transform", f"a transform is given {own.describe()} of a class of its own")
    level = tracer.graph.levels.innermost
    if own.fake.requires_grad:
        alias = tracer.graph.op("call_method", "view_as", torch.Tensor.view_as, [own, own], {})
    else:
        bare = tracer.graph.op("call_method", "detach", torch.Tensor.detach, [own], {})
        alias = tracer.graph.op("call_method", "requires_grad_", torch.Tensor.requires_grad_, [bare], {})
    assert isinstance(alias, TensorValue)
    level.aliases[alias.node] = own
    return alias


@handles(standins.gradients)
def _gradients(tracer: Tracer, /, output: Value, inputs: Value, outer: Value) -> Value:
    root = _tensor(output)
    tracer.graph.levels.check(tracer.graph.levels.innermost)
    wanted = [_tensor(value) for value in protocols.unpack(tracer, inputs)]
    if not _leads_to(tracer, root, wanted):
        return ListValue([NONE] * len(wanted))
    if not root.fake.dtype.is_floating_point:
        _refuse(tracer)
    return _pulled_back(tracer, [root], [_tensor(tracer.inline(first_gradient, [root], {}))], wanted, outer)


@handles(standins.pulled)
def _pulled(tracer: Tracer, /, outputs: Value, cotangents: Value, inputs: Value, outer: Value) -> Value:
    roots, tangents, wanted = (
        [_tensor(value) for value in protocols.unpack(tracer, values)] for values in (outputs, cotangents, inputs)
    )
    pairs = [pair for pair in zip(roots, tangents, strict=True) if _leads_to(tracer, pair[0], wanted)]
    if not pairs:
        return ListValue([NONE] * len(wanted))
    return _pulled_back(tracer, [root for root, _ in pairs], [tangent for _, tangent in pairs], wanted, outer)


def _leads_to(tracer: Tracer, root: TensorValue, wanted: list[TensorValue]) -> bool:
    nodes = [value.node for value in wanted]
    return root.fake.requires_grad and (root.node in nodes or history_of(tracer).leads_to(root.node, nodes))


def _pulled_back(
    tracer: Tracer, roots: list[TensorValue], tangents: list[TensorValue], wanted: list[TensorValue], outer: Value
) -> Value:
    """Gradients that are differentiated in turn where anything outside is behind them."""
    elsewhere = any(tangent.fake.requires_grad for tangent in tangents)
    elsewhere = elsewhere or any(_leads_elsewhere(tracer, root) for root in roots)
    create = protocols.truth(tracer, outer.realize()) and elsewhere
    call = BackwardCall(roots, tangents, retain_graph=True, create_graph=create)
    gradients = BackwardRun(tracer, call, wanted).gradients()
    return ListValue([NONE if gradient is None else gradient for gradient in gradients])


@handles(standins.outside)
def _outside(tracer: Tracer, /, tensor: Value, outer: Value) -> Value:
    value, levels = _tensor(tensor), tracer.graph.levels
    level = levels.innermost
    if value.node in level.aliases:
        return level.aliases[value.node]
    if value.node not in levels.nodes(level):
        return value
    if value.fake.requires_grad and not (
        protocols.truth(tracer, outer.realize()) and _leads_elsewhere(tracer, value)
    ):
        value = _tensor(tracer.graph.op("call_method", "detach", torch.Tensor.detach, [value], {}))
    level.given_back.add(value.node)
    return value


def _leads_elsewhere(tracer: Tracer, value: TensorValue) -> bool:
    """Whether anything but the leaves of the innermost transform is behind a tensor."""
    history, levels = history_of(tracer), tracer.graph.levels
    if history.comes_from_outside(history.behind([value.node])):
        return True
    return any(map(levels.is_leaf_around, history.leaves([value.node])))


def _tensor(value: Value) -> TensorValue:
    value = value.realize()
    assert isinstance(value, TensorValue)
    return value
