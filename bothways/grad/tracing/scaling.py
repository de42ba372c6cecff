"""What a ``GradScaler`` does to lists of gradients and to its scale, each one operation of ATen's, as what they do.

Functionalization has no way to write to a list and a tensor at once; and kernels read a gradient once for the scale and
for the update behind it. What these operations change has no other version afterwards, but for the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from bothways import torch_compat


def _unscale(gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, factor: torch.Tensor) -> None:
    """Divide by the scale, and say whether an element is no number."""
    infinite = [torch.logical_not(torch.isfinite(gradient)).any() for gradient in gradients]
    for gradient in gradients:
        gradient.data.mul_(factor.reshape(()))
    if infinite:
        is_found = torch.stack(infinite).any()
        found_inf.data.copy_(torch.where(is_found, torch.ones_like(found_inf), found_inf))


def _update_scale(
    scale: torch.Tensor, tracker: torch.Tensor, found_inf: torch.Tensor, growth: float, backoff: float, interval: int
) -> torch.Tensor:
    """A smaller scale where a step was left out, a larger one after so many that were made."""
    is_found = found_inf.reshape(scale.shape) != 0
    steps = tracker.reshape(scale.shape) + 1
    grown = (scale.double() * growth).to(scale.dtype)
    is_due = steps == interval
    longer = torch.where(torch.logical_and(is_due, torch.isfinite(grown)), grown, scale)
    counted = torch.where(torch.logical_or(is_found, is_due), torch.zeros_like(steps), steps)
    new = torch.where(is_found, (scale.double() * backoff).to(scale.dtype), longer)
    tracker.data.copy_(counted.reshape(tracker.shape))
    return scale.copy_(new)


def scaling_of(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """What an operation does, if it is a scaler's; None for others."""
    if target is torch_compat.UPDATE_SCALE:
        return partial(_update_scale, *args, **kwargs)
    if target is not torch_compat.UNSCALE or kwargs:
        return None
    gradients, found_inf, factor = args
    if found_inf.numel() != 1 or factor.numel() != 1 or any(grad.device != found_inf.device for grad in gradients):
        return None
    return partial(_unscale, gradients, found_inf, factor)
