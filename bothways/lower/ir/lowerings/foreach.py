"""Operations on lists of tensors, which optimizers use: the operation itself, for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings import arithmetic, pointwise  # noqa: F401  (the rows this reads)
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.prims import Node
from bothways.ops import LOWERINGS, Operation


def _each(target: Any, *, lists: int, keyword: str) -> Callable[..., Any]:
    """``target`` for each tensor; a number behind the first ``lists`` arguments is its ``keyword``, if it has one."""

    def lower(b: Builder, out: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[Node]:
        results = []
        for index, fake in enumerate(out):
            own = [arg[index] if isinstance(arg, (list, tuple)) else arg for arg in args]
            named = {name: arg[index] if isinstance(arg, (list, tuple)) else arg for name, arg in kwargs.items()}
            if keyword and len(own) > lists:
                named[keyword] = own.pop()
            if any(isinstance(arg, Node) and arg.shape for arg in args):
                raise NotLowered  # one tensor for all has one element
            results.append(LOWERINGS[target](b, fake, *own, **named))
        return results

    return lower


def _all_of(operation: Operation) -> None:
    """``Scalar`` overloads share a number, ``List`` and ``ScalarList`` have one for each, ``Tensor`` shares a tensor of
    one element."""
    packet = getattr(aten, operation.name, None)
    for overload in [] if packet is None else packet.overloads():
        # A tensor that holds one number for each list element is cut apart by ATen.
        cut_apart = operation.factor and overload == "Tensor"
        if overload.endswith("out") or cut_apart:
            continue
        name, _, own = ops.FACTS.get(f"{operation.name}.{overload}", {}).get("each", operation.each).partition(".")
        target = getattr(getattr(aten, name), own)
        if target in LOWERINGS:
            lists = len(torch_compat.tensor_places(target)) if operation.factor else 0
            lowers(getattr(packet, overload))(_each(target, lists=lists, keyword=operation.factor))


for _operation in ops.having("each"):
    if "." not in _operation.name:
        _all_of(_operation)
