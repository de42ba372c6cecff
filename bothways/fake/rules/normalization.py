"""Normalizations over layers, groups and batches, as the kernels of each device lay their results out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from bothways.fake.layout import channels_last, contiguous, is_contiguous, suggested_format, suggested_strides
from bothways.fake.promotion import FLOATING
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor

HALVES = frozenset({torch.float16, torch.bfloat16})


def _new(shape: Shape, dtype: torch.dtype) -> Spec:
    return Spec(shape, contiguous(shape), dtype)


def _statistics_dtype(tensor: ThinTensor, weight: ThinTensor | None, bias: ThinTensor | None) -> torch.dtype:
    """The CPU keeps statistics in the dtype of the parameters, which may be wider than the input's; GPUs in float."""
    parameters = {parameter.dtype for parameter in (weight, bias) if parameter is not None}
    if tensor.dtype not in FLOATING or len(parameters) > 1:
        raise NotThin("dtypes that do not go together")
    mixed = parameters - {tensor.dtype}
    if mixed and (mixed != {torch.float32} or tensor.dtype not in HALVES or not tensor.is_cpu):
        raise NotThin("dtypes that do not go together")
    if not tensor.is_cpu:
        return torch.float32 if tensor.dtype in HALVES else tensor.dtype
    return torch.float32 if mixed else tensor.dtype


def _layer_norm(
    tensor: ThinTensor, sizes: Sequence[int], weight: ThinTensor | None, bias: ThinTensor | None, eps: float
) -> tuple[Spec, Spec, Spec]:
    shape = tuple(tensor.shape)
    outer = len(shape) - len(sizes)
    if outer < 0 or not sizes or shape[outer:] != tuple(sizes):
        raise NotThin("normalized sizes that do not fit")
    if any(parameter is not None and tuple(parameter.shape) != tuple(sizes) for parameter in (weight, bias)):
        raise NotThin("parameters that do not fit")
    statistics = _new(shape[:outer] + (1,) * len(sizes), _statistics_dtype(tensor, weight, bias))
    return _new(shape, tensor.dtype), statistics, statistics


def _layer_norm_backward(
    grad: ThinTensor,
    tensor: ThinTensor,
    sizes: Sequence[int],
    mean: ThinTensor,
    rstd: ThinTensor,
    weight: ThinTensor | None,
    bias: ThinTensor | None,
    wanted: Sequence[bool],
) -> tuple[Spec | None, ...]:
    _statistics_dtype(tensor, weight, bias)
    if grad.dtype is not tensor.dtype or (weight is None and any(wanted[1:])):
        raise NotThin("gradients of parameters there are not")
    of_parameters = _new(tuple(sizes), tensor.dtype if weight is None else weight.dtype)
    results = (_new(tuple(tensor.shape), tensor.dtype), of_parameters, of_parameters)
    return tuple(result if want else None for result, want in zip(results, wanted, strict=True))


def _group_norm(
    tensor: ThinTensor,
    weight: ThinTensor | None,
    bias: ThinTensor | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Spec, Spec, Spec]:
    if prod(tensor.shape) != batch * channels * inner or channels % groups:
        raise NotThin("groups that do not fit")
    if any(parameter is not None and tuple(parameter.shape) != (channels,) for parameter in (weight, bias)):
        raise NotThin("parameters that do not fit")
    _check_format(tensor)
    shape = tuple(tensor.shape)
    mixed = _statistics_dtype(tensor, weight, bias)
    statistics = _new((batch, groups), mixed if tensor.is_cpu else tensor.dtype)
    return Spec(shape, suggested_strides(tensor, shape), tensor.dtype), statistics, statistics


def _check_format(tensor: ThinTensor) -> None:
    shape, stride = tuple(tensor.shape), tensor.stride()
    if not is_contiguous(shape, stride) and (not tensor.is_cpu or stride != suggested_strides(tensor, shape)):
        raise NotThin("neither contiguous nor, on the CPU, channels last")


def _group_norm_backward(
    grad: ThinTensor,
    tensor: ThinTensor,
    mean: ThinTensor,
    rstd: ThinTensor,
    weight: ThinTensor | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Spec | None, ...]:
    if grad.dtype is not tensor.dtype or (weight is None and any(wanted[1:])):
        raise NotThin("gradients of parameters there are not")
    if not tensor.is_cpu:
        _check_format(tensor)
    shape = tuple(tensor.shape)
    of_parameters = _new((channels,), tensor.dtype if weight is None else weight.dtype)
    results = (Spec(shape, suggested_strides(tensor, shape), tensor.dtype), of_parameters, of_parameters)
    return tuple(result if want else None for result, want in zip(results, wanted, strict=True))


def _batch_norm(
    tensor: ThinTensor,
    weight: ThinTensor | None,
    bias: ThinTensor | None,
    running_mean: ThinTensor | None,
    running_var: ThinTensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Spec, Spec, Spec]:
    shape = tuple(tensor.shape)
    dtype = _parameter_dtype(tensor, weight, bias, running_mean, running_var)
    if (running_mean is None) != (running_var is None) or not (training or running_mean is not None):
        raise NotThin("running statistics that do not fit")
    statistics = _new((shape[1] if training or not tensor.is_cpu else 0,), dtype)
    return Spec(shape, _batch_norm_strides(tensor), tensor.dtype), statistics, statistics


def _parameter_dtype(tensor: ThinTensor, *parameters: ThinTensor | None) -> torch.dtype:
    """The dtype of all parameters, one number for each channel: the input's, or float for halves on a GPU."""
    shape, halves = tuple(tensor.shape), tensor.dtype in HALVES
    if len(shape) < 2 or 0 in shape or tensor.dtype not in FLOATING or (halves and tensor.is_cpu):
        raise NotThin("batch norm of nothing, or of halves on the CPU")
    if not tensor.is_cpu and not (tensor.is_contiguous() or tensor.stride() == channels_last(shape)):
        raise NotThin("images on a GPU that lie in neither of the usual ways")
    dtype = torch.float32 if halves else tensor.dtype
    for one in parameters:
        if one is not None and (tuple(one.shape) != (shape[1],) or one.dtype is not dtype or not one.is_contiguous()):
            raise NotThin("parameters that do not fit")
    return dtype


def _batch_norm_strides(tensor: ThinTensor) -> Shape:
    shape = tuple(tensor.shape)
    if suggested_format(shape, tensor.stride()) is torch.contiguous_format:
        return contiguous(shape)
    return channels_last(shape)


def _batch_norm_no_stats(
    tensor: ThinTensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Spec, Spec, Spec]:
    return _batch_norm(tensor, weight, bias, None, None, training, momentum, eps)


def _batch_norm_functional(
    tensor: ThinTensor, weight: Any, bias: Any, running_mean: ThinTensor, running_var: ThinTensor, *rest: Any
) -> tuple[Spec, ...]:
    """The running statistics after the call come out as well."""
    own = _batch_norm(tensor, weight, bias, running_mean, running_var, *rest)
    return (*own, *(_new(tuple(running.shape), running.dtype) for running in (running_mean, running_var)))


def _batch_norm_backward(
    grad: ThinTensor,
    tensor: ThinTensor,
    weight: ThinTensor | None,
    running_mean: ThinTensor | None,
    running_var: ThinTensor | None,
    mean: ThinTensor | None,
    invstd: ThinTensor | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> tuple[Spec | None, ...]:
    shape = tuple(tensor.shape)
    if grad.dtype is not tensor.dtype:
        raise NotThin("a gradient of another dtype")
    of_parameters = _new((shape[1],), _parameter_dtype(tensor, weight))
    results = (Spec(shape, _batch_norm_strides(tensor), tensor.dtype), of_parameters, of_parameters)
    return tuple(result if want else None for result, want in zip(results, wanted, strict=True))


def _cudnn_batch_norm(
    tensor: ThinTensor,
    weight: ThinTensor,
    bias: ThinTensor | None,
    running_mean: ThinTensor | None,
    running_var: ThinTensor | None,
    training: bool,
    *rest: Any,
) -> tuple[Spec, ...]:
    """Statistics are kept for the backward when training, and in either case a reserve whose size does not matter."""
    shape = tuple(tensor.shape)
    parameters = [one for one in (weight, bias, running_mean, running_var) if one is not None]
    dtype = torch.float32 if tensor.dtype in HALVES else tensor.dtype
    if tensor.is_cpu or len(shape) < 2 or 0 in shape or tensor.dtype not in FLOATING:
        raise NotThin("batch norm of nothing")
    if any(tuple(one.shape) != (shape[1],) or one.dtype is not dtype or not one.is_contiguous() for one in parameters):
        raise NotThin("parameters that do not fit")
    statistics = _new((shape[1] if training else 0,), weight.dtype)
    output = Spec(shape, _cudnn_strides(tensor), tensor.dtype)
    return output, statistics, statistics, _new((0,), torch.uint8)


def _cudnn_strides(tensor: ThinTensor) -> Shape:
    shape = tuple(tensor.shape)
    strides = _batch_norm_strides(tensor)
    if tensor.stride() not in (contiguous(shape), strides) or 1 in shape:
        raise NotThin("neither contiguous nor channels last")
    return strides


def _cudnn_batch_norm_backward(
    tensor: ThinTensor, grad: ThinTensor, weight: ThinTensor, *rest: Any
) -> tuple[Spec, Spec, Spec]:
    shape = tuple(tensor.shape)
    if not weight.is_contiguous():
        raise NotThin("parameters that do not fit")
    of_parameters = _new((shape[1],), weight.dtype)
    return Spec(shape, _cudnn_strides(tensor), tensor.dtype), of_parameters, of_parameters


def _rms_norm(
    tensor: ThinTensor, sizes: Sequence[int], weight: ThinTensor | None, eps: float | None
) -> tuple[Spec, Spec]:
    if tensor.is_cpu:
        raise NotThin("the CPU takes it apart")
    output, _, statistics = _layer_norm(tensor, sizes, weight, None, 0.0)
    return output, statistics


def _rms_norm_backward(
    grad: ThinTensor,
    tensor: ThinTensor,
    sizes: Sequence[int],
    rstd: ThinTensor,
    weight: ThinTensor | None,
    wanted: Sequence[bool],
) -> tuple[Spec | None, ...]:
    return _layer_norm_backward(grad, tensor, sizes, rstd, rstd, weight, None, [*wanted, False])[:2]


RULES = {
    "cudnn_batch_norm": _cudnn_batch_norm,
    "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit.no_stats": _batch_norm_no_stats,
    "_native_batch_norm_legit_functional": _batch_norm_functional,
    "native_batch_norm_backward": _batch_norm_backward,
}
