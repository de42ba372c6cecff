"""Convolutions: results have their channels last when an operand has, as far as that is sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.fake.layout import channels_last, contiguous, is_channels_last, suggested_format
from bothways.fake.promotion import FLOATING
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor

WHOLE = frozenset({torch.float32, torch.float64})


def _convolution(
    tensor: ThinTensor,
    weight: ThinTensor,
    bias: ThinTensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *flags: Any,
) -> Spec:
    _check(tensor, weight, bias)
    rank = tensor.dim() - 2
    each = [_per_dim(values, rank) for values in (stride, padding, dilation, output_padding)]
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    expected = weight.shape[0] if transposed else weight.shape[1] * groups
    if tensor.shape[1] != expected or (bias is not None and tuple(bias.shape) != (channels,)):
        raise NotThin("channels that do not fit")
    spatial = []
    for size, kernel, step, pad, spread, extra in zip(tensor.shape[2:], weight.shape[2:], *each, strict=True):
        reach = spread * (kernel - 1)
        if transposed:
            out = (size - 1) * step - 2 * pad + reach + extra + 1
        else:
            out = (size + 2 * pad - reach - 1) // step + 1
        if out <= 0:
            raise NotThin("a kernel that is larger than the input")
        spatial.append(out)
    shape = (tensor.shape[0], channels, *spatial)
    sure = _is_cudnns(tensor, weight, transposed, groups) or _is_sure(tensor, weight, transposed)
    return Spec(shape, _strides(shape, tensor, weight, sure=sure), tensor.dtype)


def _per_dim(values: Sequence[int], rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def _check(tensor: ThinTensor, weight: ThinTensor, bias: ThinTensor | None = None) -> None:
    if tensor.dim() not in (3, 4, 5) or tensor.dim() != weight.dim():
        raise NotThin("a convolution of another rank")
    if not tensor.numel() or not weight.numel():
        raise NotThin("a convolution of nothing")
    if tensor.dtype not in FLOATING:
        raise NotThin("a convolution of other dtypes")
    if weight.dtype is not tensor.dtype or (bias is not None and bias.dtype is not tensor.dtype):
        raise NotThin("a convolution of several dtypes")


def _strides(shape: Shape, *operands: ThinTensor, sure: bool) -> Shape:
    """Channels last when an operand is, if it is ``sure``; a sequence is taken for an image of height one."""
    images = [_as_image(tuple(operand.shape), operand.stride()) for operand in operands]
    if all(suggested_format(*image) is torch.contiguous_format for image in images):
        return contiguous(shape)
    if not sure or len(shape) != 4:
        raise NotThin("a convolution whose format depends on the kernel that is taken")
    return channels_last(shape)


def _is_point(tensor: ThinTensor) -> bool:
    """Images of one pixel with gaps between them."""
    return tuple(tensor.shape[2:]) == (1, 1) and not is_channels_last(tuple(tensor.shape), tensor.stride())


def _disagree(tensor: ThinTensor, weight: ThinTensor) -> bool:
    """On a GPU the kernel decides, unless both operands have their channels last, more than one pixel each."""
    both = all(
        is_channels_last(tuple(one.shape), one.stride()) and not one.is_contiguous() for one in (tensor, weight)
    )
    return not tensor.is_cpu and (not both or 1 in tensor.shape[1:] or tensor.dtype is torch.float64)


def _is_sure(tensor: ThinTensor, weight: ThinTensor, transposed: bool) -> bool:
    is_known = tensor.dtype in WHOLE or not tensor.is_cpu  # in half precision the processor decides who computes it
    return is_known and not transposed and not _is_point(tensor) and not _disagree(tensor, weight)


def _is_cudnns(tensor: ThinTensor, weight: ThinTensor, transposed: bool, groups: int) -> bool:
    """Whether cuDNN takes it, which has channels last in all results where one of the operands has; as the weights of
    1x1 kernels have beside images that do. Other groups may be for kernels of PyTorch's own."""
    return (
        not tensor.is_cpu
        and not transposed
        and groups == 1
        and 1 not in tensor.shape[1:]
        and tensor.dtype is not torch.float64
        and torch.backends.cudnn.is_available()
        and torch.backends.cudnn.enabled
    )


def _is_ambiguous(weight: ThinTensor) -> bool:
    """Contiguous weights whose channels are also last, as those of 1x1 kernels are."""
    return weight.is_contiguous() and is_channels_last(tuple(weight.shape), weight.stride())


def _as_image(shape: Shape, stride: Shape) -> tuple[Shape, Shape]:
    if len(shape) > 3:
        return shape, stride
    return (*shape[:2], 1, shape[2]), (*stride[:2], shape[2] * stride[2], stride[2])


def _convolution_backward(
    grad: ThinTensor,
    tensor: ThinTensor,
    weight: ThinTensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Spec | None, ...]:
    _check(tensor, weight)
    if grad.dtype is not tensor.dtype:
        raise NotThin("a gradient of another dtype")
    channels = (grad.shape[1],)
    sure = _is_sure(tensor, weight, transposed) and not _is_ambiguous(weight)
    sure = sure or _is_cudnns(tensor, weight, transposed, groups)
    results = (
        Spec(tuple(tensor.shape), _strides(tuple(tensor.shape), tensor, weight, sure=sure), tensor.dtype),
        Spec(tuple(weight.shape), _strides(tuple(weight.shape), tensor, weight, sure=sure), weight.dtype),
        Spec(channels, (1,), tensor.dtype),
    )
    return tuple(result if want else None for result, want in zip(results, wanted, strict=True))


RULES = {"convolution": _convolution, "convolution_backward": _convolution_backward}
