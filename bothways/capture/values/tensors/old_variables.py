"""What older code does to leave autograd: ``Variable(x)``, which is ``x`` without its history, and ``x.detach_()``.

Both are operations of the graph, or nothing at all; where PyTorch would say something of its own about the arguments,
or a history would have to be cut off in place, plain Python does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS
from bothways.capture.values.tensors.tensors import SPECIAL_METHODS, STOPS, TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

WHOLE = (torch.Tensor, torch.nn.Parameter)


def _variable(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
    bound = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data, wanted = bound.get("data", ConstantValue(None)).realize(), bound.get("requires_grad", ConstantValue(False))
    needs = wanted.realize()
    is_usual = len(args) + len(kwargs) == len(bound) and {"data", "requires_grad"}.issuperset(bound)
    if not is_usual or not isinstance(data, TensorValue) or data.cls not in WHOLE:
        tracer.stop("object_unknown", "a Variable is made of something else than a tensor")
    if not isinstance(needs, ConstantValue) or type(needs.content) is not bool:
        tracer.stop("object_unknown", "a Variable is made that needs a gradient or not as an object says")
    if needs.content and not (data.fake.dtype.is_floating_point or data.fake.dtype.is_complex):
        tracer.stop("object_unknown", "a Variable of whole numbers is to have a gradient")
    alone = protocols.call_attr(tracer, data, "detach")
    return protocols.call_attr(tracer, alone, "requires_grad_") if needs.content else alone


def _detach(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """Nothing is cut off a tensor that has no history; of a view PyTorch refuses it."""
    if args or kwargs or tensor.fake.requires_grad or _is_view(tensor):
        tracer.stop(*STOPS["detach_"])
    return tensor


def _is_view(tensor: TensorValue) -> bool:
    return tensor.fake.meta._is_view() or (tensor.obj is not None and tensor.obj._is_view())


HANDLERS[torch.autograd.Variable] = _variable
SPECIAL_METHODS["detach_"] = _detach
