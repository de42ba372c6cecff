"""What a captured backward calls that is neither Python to look into nor one operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bothways.backward.formulas import cpp_hook
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


@handles(cpp_hook)
def _cpp_hook(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    hook, grad = args
    if not isinstance(grad.realize(), TensorValue):
        return grad
    return tracer.graph.op("call_function", cpp_hook, lambda hook, grad: _like(grad), [hook, grad], {})


def _like(grad: torch.Tensor) -> torch.Tensor:
    """A hook may give another gradient, of the same kind."""
    return grad.detach()
