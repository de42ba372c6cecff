"""Pooling over windows of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.fake.layout import suggested_strides
from bothways.fake.promotion import FLOATING
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor


def _pair(values: Sequence[int], default: Sequence[int] = ()) -> list[int]:
    chosen = list(values) or list(default)
    return chosen * 2 if len(chosen) == 1 else chosen


def _check(tensor: ThinTensor) -> None:
    if tensor.dim() not in (3, 4) or tensor.dtype not in FLOATING or 0 in tensor.shape:
        raise NotThin("pooling of other than images")


def _pooled(
    tensor: ThinTensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
) -> Shape:
    _check(tensor)
    sizes = []
    rows = zip(tensor.shape[-2:], _pair(kernel), _pair(stride, kernel), _pair(padding), _pair(dilation), strict=True)
    for size, window, step, pad, spread in rows:
        room = size + 2 * pad - spread * (window - 1) - 1
        count = (room + (step - 1 if ceil else 0)) // step + 1
        if ceil and (count - 1) * step >= size + pad:
            count -= 1  # the last window has to begin inside
        if count < 1 or pad * 2 > window:
            raise NotThin("windows that do not fit")
        sizes.append(count)
    return (*tensor.shape[:-2], *sizes)


def _like(tensor: ThinTensor, shape: Shape, dtype: torch.dtype) -> Spec:
    return Spec(shape, suggested_strides(tensor, shape), dtype)


def _max_pool(
    tensor: ThinTensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Spec, Spec]:
    shape = _pooled(tensor, kernel, stride, padding, dilation, ceil_mode)
    return _like(tensor, shape, tensor.dtype), _like(tensor, shape, torch.int64)


def _avg_pool(
    tensor: ThinTensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    *options: Any,
) -> Spec:
    return _like(tensor, _pooled(tensor, kernel, stride, padding, (1,), ceil_mode), tensor.dtype)


def _adaptive(tensor: ThinTensor, size: Sequence[int]) -> Spec:
    _check_adaptive(tensor)
    return _like(tensor, (*tensor.shape[:-2], *size), tensor.dtype)


def _check_adaptive(tensor: ThinTensor) -> None:
    """Windows of one size are laid out for all devices by one piece of code; these have a piece for each."""
    _check(tensor)
    if not tensor.is_cpu and not tensor.is_contiguous():
        raise NotThin("images on a GPU whose channels may be last")


def _backward(grad: ThinTensor, tensor: ThinTensor, *parameters: Any) -> Spec:
    _check(tensor)
    if grad.dtype is not tensor.dtype:
        raise NotThin("a gradient of another dtype")
    return _like(tensor, tuple(tensor.shape), tensor.dtype)


def _adaptive_backward(grad: ThinTensor, tensor: ThinTensor) -> Spec:
    _check_adaptive(tensor)
    return _backward(grad, tensor)


RULES = {
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _avg_pool,
    "_adaptive_avg_pool2d": _adaptive,
    "max_pool2d_with_indices_backward": _backward,
    "avg_pool2d_backward": _backward,
    "_adaptive_avg_pool2d_backward": _adaptive_backward,
}
