"""``GradScaler.step``: an update that is made, or not, as data tells.

Eager asks whether a gradient was infinite and leaves the step out. A graph makes the step and chooses, for each tensor
that it changed, between what it is now and what it was. That is the same where a step does nothing but change tensors:
an optimizer of PyTorch's, without hooks.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.calls import inline
from bothways.capture.guards.policy import is_library_module
from bothways.capture.standins import scaling
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.collections.containers import ListValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

MAYBE_STEP: Any = torch_compat.maybe_optimizer_step
MAKE_SCALE: Any = torch_compat.make_scale


@handles(MAYBE_STEP)
def _step_where_finite(
    tracer: Tracer, scaler: Value, optimizer: Value, optimizer_state: Value, /, *args: Value, **kwargs: Value
) -> Value:
    optimizer = optimizer.realize()
    if not isinstance(optimizer, ObjectValue) or not _only_changes_tensors(optimizer.obj):
        return inline(tracer, library_function(tracer, MAYBE_STEP), [scaler, optimizer, optimizer_state, *args], kwargs)
    if not torch_compat.was_called(optimizer.obj):
        tracer.stop("lazy_state", f"{optimizer.describe()} makes its first step")
    touched = _tensors(tracer.inline(scaling.touched_by, [optimizer], {}))
    before = _tensors(tracer.inline(scaling.copies, [ListValue([*touched])], {}))
    states = [_state(tensor) for tensor in touched]
    result = protocols.call(tracer, protocols.get_attr(tracer, optimizer, "step"), [*args], kwargs)
    if _tensors(tracer.inline(scaling.touched_by, [optimizer], {})) != touched:
        tracer.stop("tensor_branch", "whether an optimizer keeps another tensor than before depends on gradients")
    is_changed = [_state(tensor) != state for tensor, state in zip(touched, states, strict=True)]
    changed, old = (
        ListValue([one for one, is_other in zip(tensors, is_changed, strict=True) if is_other])
        for tensors in (touched, before)
    )
    tracer.inline(scaling.undo_where_infinite, [changed, old, optimizer_state], {})
    tracer.graph.leave_behind([copy.node for copy in before if not copy.node.users])
    return result


@handles(MAKE_SCALE)
def _make_scale(tracer: Tracer, scaler: Value, /, *args: Value) -> Value:
    scaler = scaler.realize()
    if scaler.source is not None:
        tracer.stop("lazy_state", f"{scaler.describe()} makes its state")
    return inline(tracer, library_function(tracer, MAKE_SCALE), [scaler, *args], {})


def _state(tensor: TensorValue) -> tuple[Any, Any]:
    """What is another when a tensor was changed: its node, or, of operations that give nothing, the fake's version."""
    return tensor.node, torch_compat.version_of(tensor.fake.meta)


def _tensors(values: Value) -> list[TensorValue]:
    assert isinstance(values, ListValue)
    return [item.realize() for item in values.items]  # type: ignore[misc]


def _only_changes_tensors(optimizer: Any) -> bool:
    """Whether a step that is undone leaves nothing behind; hooks are the user's."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return False
    own = vars(optimizer).get("step")  # as a schedule puts it there
    is_own = own is None or (isinstance(own, types.FunctionType) and is_library_module(own.__globals__["__name__"]))
    return (
        is_library_module(type(optimizer).__module__)
        and is_own
        and not torch_compat.has_step_hooks(optimizer)
        and not optimizer.defaults.get("differentiable")
    )
