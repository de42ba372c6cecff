"""Settings of PyTorch that captured code changes: default dtype and device, deterministic algorithms, precision, seeds.

A setting is changed for real while capture goes on, so that the fakes show its effect, and put back afterwards; in the
graph a node changes it. A default device is no state of the graph: what makes tensors is told the device it is on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.overrides.overrides import overridden
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments
from bothways.capture.values.core.handlers import HANDLERS, Handler, handles
from bothways.runtime.nodes import SetsState

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _deterministic() -> Call:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return (torch.are_deterministic_algorithms_enabled(),), {"warn_only": warn_only}


# What changes a setting -> the arguments that would set it to what it is now.
SETTINGS: dict[Callable[..., Any], Callable[[], Call]] = {
    torch.set_default_dtype: lambda: ((torch.get_default_dtype(),), {}),
    torch.set_float32_matmul_precision: lambda: ((torch.get_float32_matmul_precision(),), {}),
    torch.use_deterministic_algorithms: _deterministic,
    torch.backends.mha.set_fastpath_enabled: lambda: ((torch.backends.mha.get_fastpath_enabled(),), {}),
    torch_compat.set_sdp_priority: lambda: ((torch_compat.get_sdp_priority(),), {}),
    **{setter: lambda read=read: ((read(),), {}) for setter, read in torch_compat.SDP_SWITCHES.items()},  # type: ignore[misc]
}


@dataclass
class _Undo:
    """A setting as it was, for the end of the capture."""

    setter: Callable[..., Any]
    before: Call

    def leave(self) -> None:
        args, kwargs = self.before
        self.setter(*args, **kwargs)


def _sets(setter: Callable[..., Any], read: Callable[[], Call]) -> Handler:
    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        positional, keywords = constant_arguments(tracer, args, kwargs)
        before = read()
        tracer.run_const(setter, *positional, **keywords)
        tracer.torch_state.change_setting(_Undo(setter, before))
        tracer.graph.statement(SetsState(setter, positional, keywords), ())
        return ConstantValue(None)

    return handler


HANDLERS.update({setter: _sets(setter, read) for setter, read in SETTINGS.items()})


def call_device(tracer: Tracer, device: ConstantValue, name: str) -> Value:
    """``with device:``, entered or left."""
    if name == "__enter__":
        overridden(tracer, torch.device, [device])  # as eager makes one, which function modes see
        tracer.torch_state.enter_device(device.content)
        return device
    tracer.torch_state.leave_device()
    return ConstantValue(None)


@handles(torch.get_default_device)
def _default_device(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    device = tracer.torch_state.default_devices[-1] if tracer.torch_state.default_devices else torch.device("cpu")
    if device.type not in ("cpu", "meta") and device.index is None:
        tracer.stop("call_unknown", "which device of its kind is the current one is asked")
    return ConstantValue(device)
