"""What captured code makes sure of by looking at data: it is taken for granted, and the graph checks it.

``assume`` records a node that fails when the data is otherwise; the call then runs as plain Python, where whatever
the user's code does about it happens. Where a graph has by then changed what cannot be put back, the capture starts
again, and assumes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.fx

from bothways import ops, torch_compat
from bothways.capture.overrides.overrides import PLAIN_CLASSES
from bothways.capture.standins.optimizers import is_false
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.numbers import OpenTruth
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.tensors.late_numbers import LateTruth, ReadTruth
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.ops.operation import Says
from bothways.runtime.nodes import require_true

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def assume(tracer: Tracer, condition: TensorValue) -> None:
    """Go on as if all elements of a tensor were true."""
    tracer.graph.rely_on_data()
    tracer.graph.call(require_true, (condition.node,))


def takes_for_granted(tracer: Tracer, condition: Value, wanted: bool = True) -> bool:
    """Go on as if the truth of what only data can tell were the wanted one; False where the capture can tell, or cannot
    go on."""
    condition = condition.realize()
    if not tracer.options.assumes or tracer.symbols.only_looks:
        return False
    if isinstance(condition, OpenTruth):
        if wanted:
            condition.assume(tracer)
        return wanted
    if isinstance(condition, LateTruth):
        return condition.assume(tracer, wanted)
    if isinstance(condition, ReadTruth):
        condition = condition.asked
    if not isinstance(condition, TensorValue) or not condition.is_single:
        return False
    if tracer.overrides.heeds_modes or condition.cls not in PLAIN_CLASSES:
        return False  # what is true is overridden
    if not wanted:
        negated = tracer.inline(is_false, [condition], {}).realize()
        assert isinstance(negated, TensorValue)
        condition = negated
    assume(tracer, condition)
    return True


def usually(tracer: Tracer, condition: TensorValue) -> bool | None:
    """What a question for infinite numbers mostly says, taken for granted where the user wants one graph; None for
    other questions."""
    if not tracer.options.fullgraph:
        return None
    usual = _usual(condition.node)
    return usual if usual is not None and takes_for_granted(tracer, condition, usual) else None


def _usual(node: torch.fx.Node) -> bool | None:
    says = ops.of_node(node).says
    if says in (Says.YES, Says.NO):
        return says is Says.YES
    answers = set() if says is None else {_usual(each) for each in node.all_input_nodes}
    answer = answers.pop() if len(answers) == 1 else None
    return not answer if answer is not None and says is Says.THE_OPPOSITE else answer


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
