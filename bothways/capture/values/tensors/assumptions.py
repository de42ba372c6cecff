"""What captured code makes sure of by looking at data: it is taken for granted, and the graph checks it.

``assume`` records a node that fails when the data is otherwise; the call then runs as plain Python, where whatever
the user's code does about it happens. Where a graph has by then changed what cannot be put back, the capture starts
again, and assumes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways import torch_compat
from bothways.capture.overrides.overrides import PLAIN_CLASSES
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.numbers import OpenTruth
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.runtime.nodes import require_true

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def assume(tracer: Tracer, condition: TensorValue) -> None:
    """Go on as if all elements of a tensor were true."""
    tracer.graph.rely_on_data()
    tracer.graph.call(require_true, (condition.node,))


def takes_for_granted(tracer: Tracer, condition: Value) -> bool:
    """Go on as if a condition that only data can tell were true; False where the capture can tell, or cannot go on."""
    condition = condition.realize()
    if not tracer.options.assumes or tracer.symbols.only_looks:
        return False
    if isinstance(condition, OpenTruth):
        condition.assume(tracer)
        return True
    if not isinstance(condition, TensorValue) or not condition.is_single:
        return False
    if tracer.overrides.heeds_modes or condition.cls not in PLAIN_CLASSES:
        return False  # what is true is overridden
    assume(tracer, condition)
    return True


@handles(torch_compat.LazyPropertyOfClass)
def _lazy_property_of_class(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """What a distribution's lazy property is on the class; the validation of arguments asks for its type."""
    return ObjectValue(torch_compat.LazyPropertyOfClass)


@handles(torch_compat.assert_)
def _assert(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    arguments = dict(zip(("condition", "message"), args, strict=False)) | kwargs
    if not takes_for_granted(tracer, arguments["condition"]) and not protocols.truth(tracer, arguments["condition"]):
        tracer.throw(AssertionError, protocols.as_constant(tracer, arguments["message"]))
    return ConstantValue(None)


@handles(torch_compat.is_all_true)
def _is_all_true(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    condition = args[0].realize()
    if not isinstance(condition, TensorValue):
        tracer.stop("call_unknown", f"torch._is_all_true is asked about {condition.describe()}")
    assume(tracer, condition)
    return ConstantValue(True)
