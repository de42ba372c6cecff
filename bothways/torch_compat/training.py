"""What of a training step is private to PyTorch: hooks of optimizers, the scaler's decision, the norm of gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.utils.clip_grad as clipping
import torch.optim.optimizer as optimizer_internals
import torch.utils._foreach_utils

# Makes an optimizer's step where no gradient was found that is no number.
maybe_optimizer_step: Callable[..., Any] = torch.amp.GradScaler._maybe_opt_step
# Makes what a scaler keeps, at its first use.
make_scale: Callable[..., Any] = torch.amp.GradScaler._lazy_init_scale_growth_tracker
# The attribute of an optimizer that says whether its parameters are still to be looked at for a fused update.
CHECKED_ONCE = "_need_device_dtype_check_for_fused"
# Behind what turns gradients off.
total_norm: Callable[..., Any] = inspect.unwrap(clipping._get_total_norm)
# Kinds of devices that have operations on lists of tensors.
foreach_devices: Callable[[], list[str]] = torch.utils._foreach_utils._get_foreach_kernels_supported_devices


def has_step_hooks(optimizer: Any) -> bool:
    """Whether hooks are told of the optimizer's steps."""
    return any(
        (
            optimizer._optimizer_step_pre_hooks,
            optimizer._optimizer_step_post_hooks,
            optimizer_internals._global_optimizer_pre_hooks,
            optimizer_internals._global_optimizer_post_hooks,
        )
    )


def was_called(optimizer: Any) -> bool:
    """Whether the optimizer has made a step, if a schedule watches it."""
    return "step" not in vars(optimizer) or bool(vars(optimizer).get("_opt_called"))
