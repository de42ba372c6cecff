"""``torch.nn.Transformer`` asks whether a mask is the causal one. A mask from outside is looked at by a guard, as eager
looks at it in each call; of one that the captured code makes, see ``tensors/known_data.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.calls import inline
from bothways.capture.shapes.changes import changes_something
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

DETECT: Any = torch_compat.DETECT_CAUSAL_MASK


@handles(DETECT)
def _is_causal(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    arguments = dict(zip(("mask", "is_causal", "size"), args, strict=False)) | kwargs
    mask = arguments["mask"].realize()
    if is_none(arguments.get("is_causal")) and isinstance(mask, TensorValue) and _is_as_it_came(mask):
        wanted = _wanted_size(mask, arguments.get("size"))
        assert mask.source is not None
        answer = DETECT(mask.obj, None, wanted)
        tracer.guard("{c0}({s0}, None, {c1}) is {c2}", mask.source, DETECT, wanted, answer)
        return ConstantValue(answer)
    return inline(tracer, library_function(tracer, DETECT), list(args), kwargs)


def _wanted_size(mask: TensorValue, size: Value | None) -> int | None:
    """The size that the causal mask would have; None for that of the mask itself."""
    size = None if size is None else size.realize()
    if isinstance(size, NumberValue):
        return None if mask.fake.shape[-2] == size.content else int(size.constant())
    wanted = size.content if isinstance(size, ConstantValue) else None
    return wanted if isinstance(wanted, int) else None


def _is_as_it_came(tensor: TensorValue) -> bool:
    """Whether it comes from outside, and nothing was written to that it could share its memory with."""
    is_plain = type(tensor.obj) in (torch.Tensor, torch.nn.Parameter) and tensor.fake.meta.dim() > 1
    return is_plain and tensor.source is not None and not any(map(changes_something, tensor.node.graph.nodes))
