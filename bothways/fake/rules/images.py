"""Images that are padded, resized and rearranged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.fake.layout import contiguous, suggested_format, suggested_strides
from bothways.fake.promotion import FLOATING
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor

Rule = Callable[..., Any]


def _check(tensor: ThinTensor, ranks: tuple[int, ...]) -> None:
    if tensor.dim() not in ranks or tensor.dtype not in FLOATING or not tensor.is_cpu or 0 in tensor.shape:
        raise NotThin("other than images")


def _resized(spatial: int) -> Rule:
    """Interpolation to sizes given, with channels last kept for two dimensions."""

    def rule(tensor: ThinTensor, size: Sequence[int], *parameters: Any) -> Spec:
        _check(tensor, (spatial + 2,))
        if len(size) != spatial or any(part < 1 for part in size):
            raise NotThin("sizes that do not fit")
        return _like(tensor, (*tensor.shape[:2], *size))

    return rule


def _resized_backward(grad: ThinTensor, size: Sequence[int], before: Sequence[int], *parameters: Any) -> Spec:
    _check(grad, (len(before),))
    return _like(grad, tuple(before))


def _contiguous(rule: Rule) -> Rule:
    def only_contiguous(tensor: ThinTensor, *args: Any) -> Spec:
        if suggested_format(tuple(tensor.shape), tensor.stride()) is not torch.contiguous_format:
            raise NotThin("images whose channels are last")
        spec: Spec = rule(tensor, *args)
        return spec

    return only_contiguous


def _like(tensor: ThinTensor, shape: Shape) -> Spec:
    if len(shape) == 5 and suggested_format(tuple(tensor.shape), tensor.stride()) is not torch.contiguous_format:
        raise NotThin("volumes whose channels are last")
    return Spec(shape, suggested_strides(tensor, shape), tensor.dtype)


def _padded(spatial: int, reflects: bool) -> Rule:
    """Padding with what the image itself holds."""

    def rule(tensor: ThinTensor, padding: Sequence[int]) -> Spec:
        _check(tensor, (spatial + 1, spatial + 2))
        shape = list(tensor.shape)
        if len(padding) != 2 * spatial or not tensor.is_contiguous():
            raise NotThin("padding that does not fit")
        for position in range(spatial):
            dim, before, after = len(shape) - 1 - position, *padding[2 * position : 2 * position + 2]
            if reflects and max(before, after) >= shape[dim]:
                raise NotThin("padding that is larger than the image")
            shape[dim] += before + after
            if shape[dim] < 1 or min(before, after) < 0:
                raise NotThin("padding that leaves nothing")
        return Spec(tuple(shape), contiguous(tuple(shape)), tensor.dtype)

    return rule


def _padded_backward(grad: ThinTensor, tensor: ThinTensor, padding: Sequence[int]) -> Spec:
    _check(tensor, (2, 3, 4, 5))
    if not tensor.is_contiguous() or grad.dtype is not tensor.dtype:
        raise NotThin("a gradient that does not fit")
    return Spec(tuple(tensor.shape), contiguous(tuple(tensor.shape)), tensor.dtype)


def _pixel_shuffle(tensor: ThinTensor, factor: int) -> Spec:
    if tensor.dim() < 3 or factor < 1 or tensor.shape[-3] % factor**2 or not tensor.is_contiguous():
        raise NotThin("channels that do not fit")
    *outer, channels, height, width = tensor.shape
    shape = (*outer, channels // factor**2, height * factor, width * factor)
    return Spec(shape, contiguous(shape), tensor.dtype)


def _pixel_unshuffle(tensor: ThinTensor, factor: int) -> Spec:
    if tensor.dim() < 3 or factor < 1 or not tensor.is_contiguous() or 0 in tensor.shape:
        raise NotThin("sizes that do not fit")
    *outer, channels, height, width = tensor.shape
    if height % factor or width % factor:
        raise NotThin("sizes that do not fit")
    shape = (*outer, channels * factor**2, height // factor, width // factor)
    return Spec(shape, contiguous(shape), tensor.dtype)


def _channel_shuffle(tensor: ThinTensor, groups: int) -> Spec:
    if tensor.dim() < 3 or groups < 1 or tensor.shape[1] % groups or 0 in tensor.shape:
        raise NotThin("channels that do not fit")
    if not (tensor.is_cpu or tensor.is_contiguous()):
        raise NotThin("channels that another device lays out in its own way")
    return Spec(tuple(tensor.shape), suggested_strides(tensor, tuple(tensor.shape)), tensor.dtype)


def _unpooled(tensor: ThinTensor, indices: ThinTensor, size: Sequence[int]) -> Spec:
    _check(tensor, (3, 4))
    if indices.dtype is not torch.int64 or indices.shape != tensor.shape or len(size) != 2:
        raise NotThin("indices that do not fit")
    return _like(tensor, (*tensor.shape[:-2], *size))


def _sampled(tensor: ThinTensor, grid: ThinTensor, *parameters: Any) -> Spec:
    """Images are looked at where a grid says, into memory without any order of its own."""
    _check(tensor, (4,))
    _check(grid, (4,))
    if grid.dtype is not tensor.dtype or grid.shape[-1] != 2 or grid.shape[0] != tensor.shape[0]:
        raise NotThin("a grid that does not fit")
    shape = (*tensor.shape[:2], *grid.shape[1:3])
    return Spec(shape, contiguous(shape), tensor.dtype)


NEAREST = ("upsample_nearest", "_upsample_nearest_exact")

RULES: dict[str, Rule] = {
    **{f"{name}{spatial}d": _resized(spatial) for name in NEAREST for spatial in (1, 2, 3)},
    **{f"{name}{spatial}d_backward": _resized_backward for name in NEAREST for spatial in (1, 2, 3)},
    "upsample_linear1d": _resized(1),
    "upsample_bilinear2d": _resized(2),
    "upsample_bicubic2d": _resized(2),
    "upsample_trilinear3d": _resized(3),
    "upsample_linear1d_backward": _resized_backward,
    "upsample_bilinear2d_backward": _resized_backward,
    "upsample_bicubic2d_backward": _contiguous(_resized_backward),
    "upsample_trilinear3d_backward": _resized_backward,
    **{f"reflection_pad{spatial}d": _padded(spatial, True) for spatial in (1, 2, 3)},
    **{f"replication_pad{spatial}d": _padded(spatial, False) for spatial in (1, 2, 3)},
    **{f"reflection_pad{spatial}d_backward": _padded_backward for spatial in (1, 2, 3)},
    **{f"replication_pad{spatial}d_backward": _padded_backward for spatial in (1, 2, 3)},
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle,
    "max_unpool2d": _unpooled,
    "grid_sampler_2d": _sampled,
}
