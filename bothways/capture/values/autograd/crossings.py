"""Where a captured backward enters or leaves a module that has backward hooks: the hooks are captured there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.fx

from bothways.capture.standins import gradients as standins
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import NONE, ConstantValue
from bothways.capture.values.nn.module_hooks import ModuleHooked, Side, hooks_of

if TYPE_CHECKING:
    from bothways.capture.values.autograd.backward_runs import BackwardRun


class Crossing:
    """One side of a call of the module: the tensors that went through one node there."""

    def __init__(self, event: ModuleHooked, side: Side, is_output: bool) -> None:
        self.event, self.side, self.is_output = event, side, is_output
        self.tensors = list(side.tensors)
        self.moving = [tensor for tensor in self.tensors if tensor.fake.requires_grad]
        item: Any = self.tensors[0].node
        self.node: torch.fx.Node = item.args[0]

    def call(self, run: BackwardRun, gradients: Sequence[Value]) -> list[Value]:
        """Call the hooks with what has come; None stands for no gradient."""
        event, module = self.event, self.event.module
        hooks = ListValue(hooks_of(run.tracer, module, "full"))
        places = TupleValue([ConstantValue(place) for place in self.side.places])
        arguments: list[Value] = [module, hooks, ListValue([*gradients]), places, ConstantValue(self.side.count)]
        if not self.is_output:
            return self._results(run.captured(standins.leave_module, *arguments, event.gradients or NONE))
        before = ListValue(hooks_of(run.tracer, module, "pre"))
        inputs = ConstantValue(event.inputs.count if event.inputs.grad_fn is None else None)
        crossed = run.captured(standins.enter_module, *arguments, before, inputs)
        assert isinstance(crossed, TupleValue)
        seen, results = crossed.items
        event.gradients = seen
        return self._results(results.realize())

    def _results(self, value: Any) -> list[Value]:
        return [item.realize() for item in value.items]
