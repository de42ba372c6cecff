"""Functions that look at their arguments' data and yet return what sizes alone tell.

A loss that looks at lengths is one node, which runs as it was captured; what it returns is told here by a
function of the same signature that looks at sizes only. Arguments it would refuse are refused when the node runs, and
the call then goes on as plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.handlers import HANDLERS, Handler
from bothways.runtime.nodes import LooksAtData

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

Tensor = torch.Tensor


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    return loss if reduction == "none" else loss.sum()


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    return _reduced(log_probs.sum((0, -1)), reduction)


SIZES: dict[Any, Callable[..., Tensor]] = {F.ctc_loss: _ctc_loss}


def _handler(function: Any, sizes: Callable[..., Tensor]) -> Handler:
    node = LooksAtData(function)

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return tracer.graph.op("call_function", node, sizes, args, kwargs)

    return handler


HANDLERS.update({function: _handler(function, sizes) for function, sizes in SIZES.items()})
