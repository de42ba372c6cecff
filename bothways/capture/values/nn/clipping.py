"""The norm by which gradients are clipped: that it is a number is taken for granted where people want to be sure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bothways import torch_compat
from bothways.capture.calls import inline
from bothways.capture.standins.optimizers import is_finite
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.assumptions import takes_for_granted

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

TOTAL_NORM: Any = torch_compat.total_norm


@handles(TOTAL_NORM)
def _total_norm(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    function = library_function(tracer, TOTAL_NORM)
    arguments = function.bind(tracer, [*args], kwargs)
    wanted = "error_if_nonfinite"
    if not tracer.options.assumes or not protocols.truth(tracer, arguments[wanted]):
        return inline(tracer, function, [*args], kwargs)
    norm = inline(tracer, function, [], {**arguments, wanted: ConstantValue(False)})
    if not takes_for_granted(tracer, tracer.inline(is_finite, [norm], {})):
        return inline(tracer, function, [*args], kwargs)
    return norm
