"""Operations of libraries that kernels do better, as the operations of ATen that there are kernels for.

cuDNN normalises a batch by a call that clears its counters first, and what follows, an activation, reads its result
again. Kernels take up to three launches for all of it, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _normalised(
    x: torch.Tensor, weight: torch.Tensor, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """What cuDNN would keep for its own backward is nothing here."""
    results = aten.native_batch_norm.default(x, weight, bias, mean, var, training, momentum, eps)
    return *results, x.new_empty((0,), dtype=torch.uint8)


def _normalised_backward(
    x: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, mean: Any, var: Any, save_mean: Any, save_rstd: Any,
    eps: float, reserve: torch.Tensor,
) -> Any:  # fmt: skip
    wanted = [True, True, True]
    return aten.native_batch_norm_backward.default(
        gradient, x, weight, mean, var, save_mean, save_rstd, True, eps, wanted
    )


FOR_KERNELS: dict[Any, Callable[..., Any]] = {
    aten.cudnn_batch_norm.default: _normalised,
    aten.cudnn_batch_norm_backward.default: _normalised_backward,
}
