"""What a graph changes of the interpreter's state on its way, to be put back when it fails in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bothways import torch_compat

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class TorchState:
    """Grad mode, autocast, anomaly mode, saved-tensor hooks and settings at one moment."""

    grad: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    autocast_cache: bool
    autocast_depth: int
    anomaly: tuple[bool, bool]
    saved_tensors_hooks: Any
    saved_tensors_message: str | None
    default_dtype: torch.dtype
    precision: str
    deterministic: tuple[bool, bool]


# Grad mode, whether autocast is on and its dtype for each kind of device, whether it keeps what it casts, its depth.
Modes = tuple[bool, bool, torch.dtype, bool, torch.dtype, bool, int]


def modes() -> Modes:
    """What graphs with autocast or ``no_grad`` in them change: a part of the state, asked at every call."""
    torch.autocast_increment_nesting()
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.autocast_decrement_nesting(),
    )


def restore_modes(before: Modes) -> None:
    grad, on_cpu, cpu, on_cuda, cuda, cache, depth = before
    torch_compat.set_grad_enabled(grad)
    for device, enabled, dtype in (("cpu", on_cpu, cpu), ("cuda", on_cuda, cuda)):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    _restore_depth(modes()[-1], depth)
    torch.set_autocast_cache_enabled(cache)


def _restore_depth(now: int, before: int) -> None:
    for _ in range(now - before):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
    for _ in range(before - now):
        torch.autocast_increment_nesting()


def torch_state() -> TorchState:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return TorchState(
        torch.is_grad_enabled(),
        tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in DEVICES),
        torch.is_autocast_cache_enabled(),
        depth,
        (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        torch_compat.top_saved_tensors_hooks(),
        torch_compat.saved_tensors_hooks_disabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
    )


def restore(before: TorchState) -> None:
    torch_compat.set_grad_enabled(before.grad)
    for device, (enabled, dtype) in zip(DEVICES, before.autocast, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    now = torch_state()
    _restore_depth(now.autocast_depth, before.autocast_depth)
    torch.set_autocast_cache_enabled(before.autocast_cache)
    torch.set_anomaly_enabled(*before.anomaly)
    torch.set_default_dtype(before.default_dtype)
    torch.set_float32_matmul_precision(before.precision)
    if now.deterministic != before.deterministic:  # PyTorch loads its own compiler to say so
        torch.use_deterministic_algorithms(before.deterministic[0], warn_only=before.deterministic[1])
    while torch_compat.top_saved_tensors_hooks() not in (None, before.saved_tensors_hooks):
        torch_compat.pop_saved_tensors_hooks()
    if now.saved_tensors_message != before.saved_tensors_message:
        if before.saved_tensors_message is None:
            torch_compat.enable_saved_tensors_hooks()
        else:
            torch_compat.disable_saved_tensors_hooks(before.saved_tensors_message)


def random_state() -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where the default generators are, on the CPU and on the GPU in use."""
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def restore_random_state(before: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    cpu, cuda = before
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
