"""Operations on lists of tensors, which optimizers use: the operation itself, for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings import arithmetic, pointwise  # noqa: F401  (the rows this reads)
from bothways.lower.ir.lowerings.registry import LOWERINGS, aten, lowers
from bothways.lower.ir.prims import Node

# The operation for one tensor, and for how many of the arguments there is one for each tensor. ``Scalar`` overloads
# share a number, ``List`` and ``ScalarList`` have one for each, ``Tensor`` shares a tensor of one element.
UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split()
BINARY = {
    "add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "div": aten.div.Tensor,
    "clamp_min": aten.clamp_min.default, "clamp_max": aten.clamp_max.default,
    "maximum": aten.clamp_min.default, "minimum": aten.clamp_max.default, "pow": aten.pow.Tensor_Scalar,
}  # fmt: skip


def _each(target: Any, *, lists: int, keyword: str | None = None) -> Callable[..., Any]:
    """``target`` for each tensor; the first ``lists`` arguments are lists, and any other that is one."""

    def lower(b: Builder, out: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[Node]:
        results = []
        for index, fake in enumerate(out):
            own = [arg[index] if isinstance(arg, (list, tuple)) else arg for arg in args]
            named = {name: arg[index] if isinstance(arg, (list, tuple)) else arg for name, arg in kwargs.items()}
            if keyword is not None and len(own) > lists:
                named[keyword] = own.pop()
            if any(isinstance(arg, Node) and arg.shape for arg in args):
                raise NotLowered  # one tensor for all has one element
            results.append(LOWERINGS[target](b, fake, *own, **named))
        return results

    return lower


def _all_of(name: str, target: Callable[[str], Any], *, lists: int, keyword: str | None = None) -> None:
    packet = getattr(aten, f"_foreach_{name}", None)
    for overload in [] if packet is None else packet.overloads():
        # A tensor that holds one number for each list element is cut apart by ATen.
        cut_apart = keyword is not None and overload == "Tensor"
        if not overload.endswith("out") and not cut_apart and target(overload) in LOWERINGS:
            lowers(getattr(packet, overload))(_each(target(overload), lists=lists, keyword=keyword))


for _name in UNARY:
    _all_of(_name, lambda _, name=_name: getattr(aten, name).default, lists=1)  # type: ignore[misc]
for _name, _target in BINARY.items():
    _all_of(_name, lambda _, target=_target: target, lists=2)  # type: ignore[misc]
_all_of("addcmul", lambda _: aten.addcmul.default, lists=3, keyword="value")
_all_of("addcdiv", lambda _: aten.addcdiv.default, lists=3, keyword="value")
_all_of("copy", lambda _: aten.copy.default, lists=2)
_all_of("lerp", lambda overload: aten.lerp.Tensor if overload == "List" else aten.lerp.Scalar, lists=2)
