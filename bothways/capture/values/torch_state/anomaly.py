"""Anomaly mode inside a compiled function: ``detect_anomaly`` and ``set_detect_anomaly``.

Statements of the graph set the mode, and what lies between runs as captured, so that a backward which gives a NaN
names the operation of the user's. Capture itself does not run under the mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.objects.builtins import BoundBuiltin
from bothways.runtime.hooks import WarnAt, anomaly_state, restore_anomaly, set_anomaly

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# What PyTorch says where the mode is entered.
WARNING = (
    "Anomaly Detection has been enabled. This mode will increase the runtime and should only be enabled for debugging."
)


class AnomalyMode(Value):
    """The context manager; ``before`` is the node that gives the state to go back to."""

    def __init__(self, cls: type, before: torch.fx.Node, entered: tuple[bool, bool] | None) -> None:
        self.cls, self.before, self.entered = cls, before, entered

    def python_type(self) -> type:
        return self.cls

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__exit__":
            tracer.graph.statement(restore_anomaly, (self.before,))
        elif self.entered is not None:
            tracer.graph.statement(set_anomaly, self.entered)
        return ConstantValue(None)


@handles(torch.autograd.detect_anomaly)
def _detect(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    positional, keywords = constant_arguments(tracer, [*args], kwargs)
    check_nan = _detect_arguments(*positional, **keywords)
    where, frame = tracer.where(), tracer.running.frames[-1]
    before = tracer.graph.statement(anomaly_state, ())
    tracer.graph.statement(WarnAt(WARNING, where.filename, where.line, frame.function.globals), ())
    return AnomalyMode(torch.autograd.detect_anomaly, before, (True, check_nan))


def _detect_arguments(check_nan: bool = True) -> bool:
    return check_nan


@handles(torch.autograd.set_detect_anomaly)
def _set_detect(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    positional, keywords = constant_arguments(tracer, [*args], kwargs)
    state = _set_arguments(*positional, **keywords)
    return AnomalyMode(torch.autograd.set_detect_anomaly, tracer.graph.statement(set_anomaly, state), None)


def _set_arguments(mode: bool, check_nan: bool = True) -> tuple[Any, Any]:
    return mode, check_nan
