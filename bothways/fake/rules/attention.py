"""Scaled dot-product attention: which kernel PyTorch takes, and what each returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.fake.layout import contiguous, dense_like
from bothways.fake.promotion import FLOATING
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor, fresh
from bothways.symbols import hint


def _choice(*args: Any, **options: Any) -> int:
    """Asked of PyTorch on tensors with real memory that is never read: it looks at sizes, devices and flags only."""
    with torch_compat.no_modes():
        return torch_compat.attention_choice(
            *map(_emptied, args), **{name: _emptied(value) for name, value in options.items()}
        )


def _emptied(value: Any) -> Any:
    if type(value) is not ThinTensor:
        return value
    # On a CPU the choice depends on no size above one; elsewhere it may, and symbols become numbers here.
    number = hint if value.is_cpu else int
    shape, stride = [number(size) for size in value.shape], [number(step) for step in value.stride()]
    empty = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    return empty.requires_grad_() if value.requires_grad else empty


def _heads_inside(shape: Shape, dtype: torch.dtype) -> Spec:
    """Sizes (batch, heads, length, …) laid out as (batch, length, heads, …)."""
    batch, heads, length, *rest = shape
    inner = contiguous((batch, length, heads, *rest))
    return Spec(shape, (inner[0], inner[2], inner[1], *inner[3:]), dtype)


def _flash_on_cpu(
    query: ThinTensor, key: ThinTensor, value: ThinTensor, *parameters: Any, **options: Any
) -> tuple[Spec, Spec]:
    _check(query, key, value)
    statistics = torch.float64 if query.dtype is torch.float64 else torch.float32
    return _like(query), _heads_inside(tuple(query.shape[:3]), statistics)


def _like(tensor: ThinTensor) -> Spec:
    """Laid out as a copy of the tensor would be, seen as (batch, length, heads, size of a head)."""
    batch, heads, length, size = tensor.shape
    steps = tensor.stride()
    inner = dense_like((batch, length, heads, size), (steps[0], steps[2], steps[1], steps[3]))
    return Spec(tuple(tensor.shape), (inner[0], inner[2], inner[1], inner[3]), tensor.dtype)


def _new(shape: Shape, dtype: torch.dtype) -> Spec:
    return Spec(shape, contiguous(shape), dtype)


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


def _check_on_gpu(query: ThinTensor, key: ThinTensor, value: ThinTensor) -> None:
    _check(query, key, value)
    if query.is_cpu or 1 in query.shape or 1 in key.shape:
        raise NotThin("a layout that is ambiguous")
    if query.shape[-1] % 8 or any(one.stride(-1) != 1 for one in (query, key, value)):
        raise NotThin("heads that are padded or copied before")


def _efficient(
    query: ThinTensor,
    key: ThinTensor,
    value: ThinTensor,
    bias: ThinTensor | None,
    keeps_statistics: bool,
    *parameters: Any,
    **options: Any,
) -> tuple[Any, ...]:
    """The statistics are padded to whole warps; the state of the generator stays on the CPU."""
    _check_on_gpu(query, key, value)
    batch, heads, length, _ = query.shape
    statistics = _new((batch, heads, -(-length // 32) * 32 if keeps_statistics else 0), torch.float32)
    state = [fresh(_new((), torch.int64), torch.device("cpu")) for _ in range(2)]
    return _heads_inside(tuple(query.shape), query.dtype), statistics, *state


def _efficient_backward(
    grad: ThinTensor,
    query: ThinTensor,
    key: ThinTensor,
    value: ThinTensor,
    bias: ThinTensor | None,
    output: ThinTensor,
    statistics: ThinTensor,
    seed: ThinTensor,
    state: ThinTensor,
    dropout: float,
    wanted: Sequence[bool],
    *parameters: Any,
    **options: Any,
) -> tuple[Spec | None, ...]:
    _check_on_gpu(query, key, value)
    if list(wanted) != [True, True, True, False]:
        raise NotThin("a gradient of the mask")
    return (*(_heads_inside(tuple(one.shape), one.dtype) for one in (query, key, value)), None)


def _flash(
    query: ThinTensor, key: ThinTensor, value: ThinTensor, dropout: float = 0.0, *parameters: Any, **options: Any
) -> tuple[Any, ...]:
    _check_on_gpu(query, key, value)
    batch, heads, length, _ = query.shape
    rest = (_new((2,), torch.uint64), _new((), torch.uint64), _new((0,), query.dtype))
    return _like(query), _new((batch, heads, length), torch.float32), None, None, length, key.shape[2], *rest


def _cudnn(
    query: ThinTensor, key: ThinTensor, value: ThinTensor, bias: Any, keeps_statistics: bool, *rest: Any, **options: Any
) -> tuple[Any, ...]:
    _check_on_gpu(query, key, value)
    if bias is not None or not keeps_statistics:
        raise NotThin("a mask, or nothing kept for the backward")
    batch, heads, length, _ = query.shape
    state = (_new((), torch.int64), _new((), torch.int64))
    return _like(query), _new((batch, heads, length, 1), torch.float32), None, None, length, key.shape[2], *state, None


def _like_each(
    grad: ThinTensor, query: ThinTensor, key: ThinTensor, value: ThinTensor, *parameters: Any, **options: Any
) -> tuple[Spec, ...]:
    _check_on_gpu(query, key, value)
    return _like(query), _like(key), _like(value)


RULES: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _like_each,
    "_scaled_dot_product_cudnn_attention": _cudnn,
    "_scaled_dot_product_cudnn_attention_backward": _like_each,
    "_fused_sdp_choice": _choice,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_on_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_on_cpu_backward,
}
