"""Formulas of derivatives that do one thing for tensors and another for stand-ins, which have no data to look at.

Where the two can be told apart by the numbers, or by how they lie, whoever traces a formula takes that for tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from bothways import torch_compat

# The nodes of ``max``, ``min`` and ``median`` of all elements, and of one dimension, which have no such product.
_EXTREMES = frozenset(
    f"{name}Backward{number}" for name in ("Max", "Min", "Median", "Nanmedian") for number in (0, 1)
)


def shares_extreme(mask: Any, share: Any) -> bool:
    """Whether a product is the gradient of the largest of all elements: those that are equal to it, times the share of
    each. On a CPU that of tensors is zeros, one after the other in memory, into which the share is written: zero where
    it would be times an infinite one, or negative, and everywhere where the largest is there no more."""
    if not (isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and mask.is_cpu):
        return False
    return isinstance(share, torch.Tensor) and torch_compat.running_autograd_name() in _EXTREMES


def shared_extreme(mask: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """That gradient, as it is of tensors."""
    zeros = torch.zeros_like(mask, dtype=share.dtype, memory_format=torch.contiguous_format)
    return torch.masked_fill(zeros, mask, share)
