"""What captured code makes sure of by looking at data: it is taken for granted, and the graph checks it.

``assume`` records a node that fails when the data is otherwise; the call then runs as plain Python, where whatever
the user's code does about it happens. A graph that changes its inputs cannot be run again, so there the capture stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways import torch_compat
from bothways.capture.values.base import Args, Kwargs, Value
from bothways.capture.values.constants import ConstantValue
from bothways.capture.values.objects import ObjectValue
from bothways.capture.values.tensors import TensorValue
from bothways.capture.values.torch_functions import handles
from bothways.runtime.nodes import require_true

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def assume(tracer: Tracer, condition: TensorValue) -> None:
    """Go on as if all elements of a tensor were true."""
    tracer.graph.call(require_true, (condition.node,))
    tracer.final_checks.append(tracer.graph.check_repeatable)


@handles(torch_compat.LazyPropertyOfClass)
def _lazy_property_of_class(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """What a distribution's lazy property is on the class; the validation of arguments asks for its type."""
    return ObjectValue(torch_compat.LazyPropertyOfClass)


@handles(torch_compat.is_all_true)
def _is_all_true(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
    condition = args[0].realize()
    if not isinstance(condition, TensorValue):
        tracer.stop("call_unknown", f"torch._is_all_true is asked about {condition.describe()}")
    assume(tracer, condition)
    return ConstantValue(True)
