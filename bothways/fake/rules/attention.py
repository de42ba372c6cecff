"""Scaled dot-product attention: which kernel PyTorch takes, and what the CPU's returns."""

from __future__ import annotations

from typing import Any

import torch

from bothways import torch_compat
from bothways.fake.layout import contiguous
from bothways.fake.promotion import FLOATING
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor


def _choice(*args: Any, **options: Any) -> int:
    """Asked of PyTorch on tensors with real memory that nobody reads: it looks at sizes, devices and flags only."""
    with torch_compat.no_modes():
        return torch_compat.attention_choice(
            *map(_emptied, args), **{name: _emptied(value) for name, value in options.items()}
        )


def _emptied(value: Any) -> Any:
    if type(value) is not ThinTensor:
        return value
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_() if value.requires_grad else made


def _heads_inside(shape: Shape, dtype: torch.dtype) -> Spec:
    """Sizes (batch, heads, length, …) laid out as (batch, length, heads, …)."""
    batch, heads, length, *rest = shape
    inner = contiguous((batch, length, heads, *rest))
    return Spec(shape, (inner[0], inner[2], inner[1], *inner[3:]), dtype)


def _flash_on_cpu(
    query: ThinTensor, key: ThinTensor, value: ThinTensor, *parameters: Any, **options: Any
) -> tuple[Spec, Spec]:
    _check(query, key, value)
    shape = tuple(query.shape)
    statistics = torch.float64 if query.dtype is torch.float64 else torch.float32
    return _heads_inside(shape, query.dtype), _heads_inside(shape[:3], statistics)


def _flash_on_cpu_backward(
    grad: ThinTensor, query: ThinTensor, key: ThinTensor, value: ThinTensor, *parameters: Any, **options: Any
) -> tuple[Spec, Spec, Spec]:
    _check(query, key, value)
    return tuple(_heads_inside(tuple(one.shape), one.dtype) for one in (query, key, value))  # type: ignore[return-value]


def _check(query: ThinTensor, key: ThinTensor, value: ThinTensor) -> None:
    if not all(one.dim() == 4 and one.dtype is query.dtype and one.dtype in FLOATING for one in (query, key, value)):
        raise NotThin("attention on operands that do not go together")
    if query.shape[-1] != value.shape[-1] or key.shape != value.shape or query.shape[:2] != key.shape[:2]:
        raise NotThin("attention on operands that do not go together")


RULES = {
    "_fused_sdp_choice": _choice,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_on_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_on_cpu_backward,
}
