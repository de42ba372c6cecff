"""Operations of a training step that write to what they are given: the scaler's, and whole updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bothways.fake.tensor import NotThin, ThinTensor

Lists = list[ThinTensor]


def _unscaled(gradients: Lists, found_inf: ThinTensor, factor: ThinTensor) -> None:
    if found_inf.numel() != 1 or factor.numel() != 1:
        raise NotThin("gradients are unscaled by several numbers")
    if not all(gradient.dtype.is_floating_point for gradient in gradients):
        raise NotThin("gradients that are no fractions are unscaled")


def _scale_updated(scale: ThinTensor, tracker: ThinTensor, found_inf: ThinTensor, *numbers: Any) -> ThinTensor:
    if scale.numel() != 1 or tracker.numel() != 1 or found_inf.numel() != 1:
        raise NotThin("a scale is several numbers")
    return scale


def _updated(parameters: Lists, *args: Any, **options: Any) -> None:
    """A fused update; what it keeps for a parameter is as large, or a counter."""
    for kept in args:
        if not isinstance(kept, (list, tuple)) or len(kept) not in (0, len(parameters)):
            raise NotThin("an update of lists of several lengths")


RULES: dict[str, Callable[..., Any]] = {
    "_amp_foreach_non_finite_check_and_unscale_": _unscaled,
    "_amp_update_scale_": _scale_updated,
    "_fused_adagrad_": _updated,
    "_fused_adam_": _updated,
    "_fused_adamw_": _updated,
    "_fused_sgd_": _updated,
}
