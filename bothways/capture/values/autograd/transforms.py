"""What ``torch.func.grad`` needs of the graph: leaves, their gradients, and what of a history is the outside's.

PyTorch keeps the history of each transform apart. A graph has one history, so a tensor that leaves a transform is
detached where all that it leads to are the transform's own leaves, and stays as it is where it leads elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bothways.capture.standins import transforms as standins
from bothways.capture.standins.gradients import first_gradient
from bothways.capture.values.autograd.backward_runs import BackwardCall, BackwardRun, history_of
from bothways.capture.values.collections.containers import ListValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import NONE
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


@handles(standins.begin)
def _begin(tracer: Tracer, /) -> Value:
    if torch.is_inference_mode_enabled() or tracer.torch_state.saved_tensors_hooks:
        tracer.stop("transform", "a transform is called in inference mode, or where hooks see what is saved")
    tracer.graph.levels.begin()
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
    root = output.realize()
    assert isinstance(root, TensorValue)
    tracer.graph.levels.check(tracer.graph.levels.innermost)
    wanted = [_tensor(value) for value in protocols.unpack(tracer, inputs)]
    nodes = [value.node for value in wanted]
    history = history_of(tracer)
    if not root.fake.requires_grad or not (root.node in nodes or history.leads_to(root.node, nodes)):
        return ListValue([NONE] * len(wanted))
    create = protocols.truth(tracer, outer.realize()) and _leads_elsewhere(tracer, root)
    one = tracer.inline(first_gradient, [root], {})
    call = BackwardCall([root], [_tensor(one)], retain_graph=True, create_graph=create)
    gradients = BackwardRun(tracer, call).gradients(wanted)
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
    return any(leaf not in levels.innermost.aliases for leaf in history.leaves([value.node]))


def _tensor(value: Value) -> TensorValue:
    value = value.realize()
    assert isinstance(value, TensorValue)
    return value
