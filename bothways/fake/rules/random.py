"""Random numbers: what they are like is known, which they are is not asked."""

from __future__ import annotations

from typing import Any

import torch

from bothways.fake.layout import contiguous, dense_like
from bothways.fake.promotion import FLOATING, REAL
from bothways.fake.tensor import NotThin, Spec, ThinTensor


def _contiguous_like(tensor: ThinTensor, *parameters: Any, generator: Any = None) -> Spec:
    if tensor.dtype not in FLOATING:
        raise NotThin("probabilities that are no floating numbers")
    shape = tuple(tensor.shape)
    return Spec(shape, contiguous(shape), tensor.dtype)


def _counted(count: ThinTensor, probability: ThinTensor, *, generator: Any = None) -> Spec:
    if tuple(probability.shape) != tuple(count.shape) or probability.dtype is not count.dtype:
        raise NotThin("probabilities that do not fit")
    return _contiguous_like(count)


def _with_noise(tensor: ThinTensor, noise: ThinTensor, *parameters: Any, generator: Any = None) -> Spec:
    return _contiguous_like(tensor)


def _in_place(tensor: ThinTensor, *parameters: Any, generator: Any = None) -> ThinTensor:
    if any(isinstance(parameter, torch.Tensor) for parameter in parameters) or tensor.dtype not in FLOATING:
        raise NotThin("random numbers with tensors for parameters")
    return tensor


def _integers_in_place(tensor: ThinTensor, *parameters: Any, generator: Any = None) -> ThinTensor:
    if tensor.dtype not in REAL:
        raise NotThin(f"random numbers of {tensor.dtype}")
    return tensor


def _dropout(tensor: ThinTensor, p: float, train: bool | None) -> tuple[Spec, Spec]:
    if tensor.dtype not in FLOATING or train is False:
        raise NotThin("dropout that drops nothing")
    shape = tuple(tensor.shape)
    stride = dense_like(shape, tensor.stride())
    return Spec(shape, stride, tensor.dtype), Spec(shape, stride, torch.bool)


RULES = {
    "bernoulli.default": _contiguous_like,
    "bernoulli.p": _contiguous_like,
    "poisson.default": _contiguous_like,  # of this, and of the two below, the meta kernels say otherwise
    "_standard_gamma.default": _contiguous_like,
    "_sample_dirichlet.default": _contiguous_like,  # of these two there are none
    "binomial.default": _counted,
    "rrelu_with_noise.default": _with_noise,
    "bernoulli_.float": _in_place,
    "normal_": _in_place,
    "uniform_": _in_place,
    "exponential_": _in_place,
    "log_normal_": _in_place,
    "cauchy_": _in_place,
    "geometric_": _in_place,
    "random_": _integers_in_place,
    "native_dropout": _dropout,
}
