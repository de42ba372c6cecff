"""Operations that put tensors together, repeat them or move their elements about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.fake.layout import channels_last, contiguous, dense_like, suggested_format, suggested_strides, wrap_dim
from bothways.fake.promotion import REAL, common_dtype
from bothways.fake.tensor import NotThin, Spec, ThinTensor


def _cat(tensors: Sequence[ThinTensor], dim: int = 0) -> Spec:
    """The sizes added up in one dimension, in the memory format that all share.

    An empty tensor of one dimension counts for the dtype and for the format, whatever the others' dimensions are.
    """
    dtype = common_dtype(tensors)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if not all(shapes):
        raise NotThin("cat of scalars")
    shapes = [shape for shape in shapes if shape != (0,)] or shapes[:1]
    first = shapes[0]
    dim = wrap_dim(dim, len(first))
    others = [shape[:dim] + shape[dim + 1 :] for shape in shapes]
    if any(other != others[0] or len(shape) != len(first) for other, shape in zip(others, shapes, strict=True)):
        raise NotThin(f"cat of {shapes}")
    shape = (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1 :])
    formats = {suggested_format(tuple(tensor.shape), tensor.stride()) for tensor in tensors}
    in_channels_last = len(formats) == 1 and formats != {torch.contiguous_format}
    return Spec(shape, channels_last(shape) if in_channels_last else contiguous(shape), dtype)


def _stack(tensors: Sequence[ThinTensor], dim: int = 0) -> Spec:
    shape = tuple(tensors[0].shape)
    dim = wrap_dim(dim, len(shape) + 1)
    if any(tuple(tensor.shape) != shape for tensor in tensors):
        raise NotThin("stack of tensors of several sizes")
    if any(suggested_format(shape, tensor.stride()) is not torch.contiguous_format for tensor in tensors):
        raise NotThin("stack of images whose channels are last")
    stacked = (*shape[:dim], len(tensors), *shape[dim:])
    return Spec(stacked, contiguous(stacked), common_dtype(tensors))


def _repeat(tensor: ThinTensor, repeats: Sequence[int]) -> Spec:
    new = len(repeats) - tensor.dim()
    if new < 0 or any(times < 0 for times in repeats):
        raise NotThin("fewer repeats than dimensions")
    sizes = (1,) * new + tuple(tensor.shape)
    shape = tuple(size * times for size, times in zip(sizes, repeats, strict=True))
    return Spec(shape, contiguous(shape), tensor.dtype)


def _flip(tensor: ThinTensor, dims: Sequence[int]) -> Spec:
    chosen = [wrap_dim(dim, tensor.dim()) for dim in dims]
    if len(set(chosen)) != len(chosen) or tensor.dtype not in REAL:
        raise NotThin("a dimension named twice")
    shape = tuple(tensor.shape)
    return Spec(shape, dense_like(shape, tensor.stride()), tensor.dtype)


def _rolled(tensor: ThinTensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Spec:
    if not dims or len(dims) != len(shifts) or not tensor.numel() or not tensor.dim():
        raise NotThin("a roll of all elements, or of nothing")
    for dim in dims:
        wrap_dim(dim, tensor.dim())
    shape = tuple(tensor.shape)
    return Spec(shape, contiguous(shape), tensor.dtype)


def _pad(tensor: ThinTensor, pad: Sequence[int], value: Any = 0) -> Spec:
    shape = list(tensor.shape)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise NotThin("padding that does not fit")
    for position in range(len(pad) // 2):
        dim = len(shape) - 1 - position
        shape[dim] += pad[2 * position] + pad[2 * position + 1]
        if shape[dim] < 0:
            raise NotThin("padding that leaves less than nothing")
    # Without any it is a copy of a part. If that changes, it is not asked where the copy is laid out alike.
    changes = any(isinstance(size, torch.SymInt) for size in pad)
    if not (changes and tensor.is_contiguous()) and all(size <= 0 for size in pad):
        return Spec(tuple(shape), dense_like(tuple(shape), tensor.stride()), tensor.dtype)
    return Spec(tuple(shape), suggested_strides(tensor, tuple(shape)), tensor.dtype)


def _triangle(tensor: ThinTensor, diagonal: int = 0) -> Spec:
    shape = tuple(tensor.shape)
    if len(shape) < 2 or tensor.dtype not in REAL:
        raise NotThin("a triangle of fewer than two dimensions")
    return Spec(shape, contiguous(shape), tensor.dtype)


def _zeros_with(grad: ThinTensor, sizes: Sequence[int], *parameters: Any) -> Spec:
    """The gradient of a view: zeros of the base's sizes with the gradient written into a part."""
    shape = tuple(sizes)
    return Spec(shape, contiguous(shape), grad.dtype)


RULES = {
    "cat": _cat,
    "stack": _stack,
    "repeat": _repeat,
    "flip": _flip,
    "roll": _rolled,
    "constant_pad_nd": _pad,
    "tril": _triangle,
    "triu": _triangle,
    "slice_backward": _zeros_with,
    "select_backward": _zeros_with,
    "diagonal_backward": _zeros_with,
    "unfold_backward": _zeros_with,
}
