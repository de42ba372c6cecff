"""Registers the functions that lower ATen operations; their records find them (``Operation.lowering``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bothways import torch_compat
from bothways.lower.ir.sizes import NotLowered
from bothways.ops import LOWERINGS

aten = torch.ops.aten

# A lowering gets the builder, the fake result of the operation, and its arguments with Nodes for tensors. It gives
# Nodes, or raises NotLowered where it is not certain to do what ATen does.
Lowering = Callable[..., Any]


def lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    def register(function: Lowering) -> Lowering:
        for target in targets:
            LOWERINGS[target] = function
        return function

    return register


def lowers_floating(*targets: Any) -> Callable[[Lowering], Lowering]:
    """For operations that ATen has for floating point alone: it raises for other results, so it is asked for them."""

    def register(function: Lowering) -> Lowering:
        @functools.wraps(function)
        def lower(b: Any, out: Any, *args: Any, **kwargs: Any) -> Any:
            fake = out[0] if isinstance(out, (tuple, list)) else out
            if fake is not None and not fake.dtype.is_floating_point:
                raise NotLowered
            return function(b, out, *args, **kwargs)

        lowers(*targets)(lower)
        return function

    return register


def overloads(name: str, wanted: Iterable[str] = ()) -> list[Any]:
    """The functional overloads of an operation; none where this PyTorch has no such operation."""
    packet = getattr(aten, name, None)
    if packet is None:
        return []
    names = tuple(wanted) or ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    named = [getattr(packet, overload) for overload in packet.overloads() if overload in names]
    return [target for target in named if str(torch_compat.schema_of(target).returns[0].type) == "Tensor"]
