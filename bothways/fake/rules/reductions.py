"""Reductions, scans, and the softmax family: contiguous results with dimensions left out or kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.fake.layout import contiguous, dense_like, wrap_dim
from bothways.fake.promotion import COMPLEX, FLOATING, INTEGRAL, NUMERIC, REAL, to_floating
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor

Rule = Callable[..., Any]
Dims = int | Sequence[int] | None


def new(shape: Shape, dtype: torch.dtype) -> Spec:
    return Spec(shape, contiguous(shape), dtype)


def reduced(tensor: ThinTensor, dims: Dims, keepdim: bool = False, *, needs_elements: bool = False) -> Shape:
    """The sizes without ``dims``, all of them when none are named."""
    shape = tuple(tensor.shape)
    rank = len(shape)
    chosen = [dims] if isinstance(dims, int) else list(dims or range(rank))
    gone = {wrap_dim(dim, rank) for dim in chosen}
    if len(gone) != len(chosen):
        raise NotThin("a dimension named twice")
    if needs_elements and any(shape[dim] == 0 for dim in gone if shape):
        raise NotThin("a reduction over nothing")
    if keepdim:
        return tuple(1 if dim in gone else size for dim, size in enumerate(shape))
    return tuple(size for dim, size in enumerate(shape) if dim not in gone)


def _check(tensor: ThinTensor, takes: frozenset[torch.dtype]) -> torch.dtype:
    if tensor.dtype not in takes:
        raise NotThin(f"{tensor.dtype} is not taken")
    return tensor.dtype


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype in INTEGRAL else dtype


def _sum(tensor: ThinTensor, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Spec:
    own = _check(tensor, REAL | COMPLEX)
    return new(reduced(tensor, dims, keepdim), dtype or _accumulated(own))


def _mean(tensor: ThinTensor, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Spec:
    result = dtype or tensor.dtype
    if result not in FLOATING or tensor.dtype not in REAL:
        raise NotThin("a mean of integers")
    return new(reduced(tensor, dims, keepdim), result)


def _extreme(tensor: ThinTensor, dims: Dims = None, keepdim: bool = False) -> Spec:
    return new(reduced(tensor, dims, keepdim, needs_elements=True), _check(tensor, REAL))


def _extreme_with_index(tensor: ThinTensor, dim: int, keepdim: bool = False) -> tuple[Spec, Spec]:
    shape = reduced(tensor, dim, keepdim, needs_elements=True)
    return new(shape, _check(tensor, REAL)), new(shape, torch.int64)


def _arg_extreme(tensor: ThinTensor, dim: int | None = None, keepdim: bool = False) -> Spec:
    _check(tensor, NUMERIC)
    return new(reduced(tensor, dim, keepdim, needs_elements=True), torch.int64)


def _truth(tensor: ThinTensor, dims: Dims = None, keepdim: bool = False) -> Spec:
    dtype = _check(tensor, REAL)
    return new(reduced(tensor, dims, keepdim), torch.uint8 if dtype is torch.uint8 else torch.bool)


def _prod(tensor: ThinTensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Spec:
    own = _check(tensor, REAL)
    return new(reduced(tensor, dim, keepdim), dtype or _accumulated(own))


def _var(tensor: ThinTensor, dims: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Spec:
    return new(reduced(tensor, dims, keepdim), _check(tensor, FLOATING))


def _var_mean(tensor: ThinTensor, dims: Dims = None, **options: Any) -> tuple[Spec, Spec]:
    spec = _var(tensor, dims, **options)
    return spec, spec


def _logsumexp(tensor: ThinTensor, dims: Dims, keepdim: bool = False) -> Spec:
    return new(reduced(tensor, dims, keepdim), to_floating(_check(tensor, REAL)))


def _vector_norm(
    tensor: ThinTensor, order: Any = 2, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Spec:
    if dtype not in (None, tensor.dtype) or not tensor.numel():
        raise NotThin("a norm in another dtype, or of nothing")
    return new(reduced(tensor, dims, keepdim), _check(tensor, FLOATING))


def _norm(tensor: ThinTensor, order: Any = 2, dims: Dims = None, keepdim: bool = False) -> Spec:
    return _vector_norm(tensor, order, dims, keepdim)


def _foreach_norm(tensor: ThinTensor, order: Any = 2, dtype: Any = None) -> Spec:
    return _vector_norm(tensor, order, dtype=dtype)


def _scan(tensor: ThinTensor, dim: int, *, dtype: torch.dtype | None = None) -> Spec:
    wrap_dim(dim, tensor.dim())
    own = _check(tensor, REAL)
    return new(tuple(tensor.shape), dtype or _accumulated(own))


def _softmax(tensor: ThinTensor, dim: int, half_to_float: bool) -> Spec:
    wrap_dim(dim, tensor.dim())
    if half_to_float:
        raise NotThin("a softmax that also converts")
    return new(tuple(tensor.shape), _check(tensor, FLOATING))


def _safe_softmax(tensor: ThinTensor, dim: int, dtype: torch.dtype | None = None) -> Spec:
    """As the softmax of a tensor, with rows of nothing but minus infinity replaced by zeros."""
    if dtype not in (None, tensor.dtype):
        raise NotThin("a softmax that also converts")
    return _softmax(tensor, dim, False)


def _softmax_backward(grad: ThinTensor, output: ThinTensor, dim: int, dtype: torch.dtype) -> Spec:
    wrap_dim(dim, grad.dim())
    if grad.shape != output.shape or not grad.dtype is output.dtype is dtype:
        raise NotThin("gradients that do not fit")
    return new(tuple(grad.shape), _check(grad, FLOATING))


def _sort(tensor: ThinTensor, *args: Any, **options: Any) -> tuple[Spec, Spec]:
    shape = tuple(tensor.shape)
    stride = dense_like(shape, tensor.stride())
    return Spec(shape, stride, _check(tensor, REAL)), Spec(shape, stride, torch.int64)


def _topk(tensor: ThinTensor, k: int, dim: int = -1, *args: Any) -> tuple[Spec, Spec]:
    shape = list(tensor.shape)
    dim = wrap_dim(dim, len(shape))
    if not shape or not 0 <= k <= shape[dim]:
        raise NotThin("more than there are")
    shape[dim] = k
    return new(tuple(shape), _check(tensor, NUMERIC)), new(tuple(shape), torch.int64)


RULES: dict[str, Rule] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _extreme,
    "amin": _extreme,
    "max.default": _extreme,
    "min.default": _extreme,
    "max.dim": _extreme_with_index,
    "min.dim": _extreme_with_index,
    "argmax": _arg_extreme,
    "argmin": _arg_extreme,
    "any": _truth,
    "all": _truth,
    "prod": _prod,
    "var.correction": _var,
    "std.correction": _var,
    "var_mean.correction": _var_mean,
    "std_mean.correction": _var_mean,
    "logsumexp": _logsumexp,
    "linalg_vector_norm": _vector_norm,
    "norm.Scalar": _norm,
    "norm.ScalarOpt_dim": _norm,
    "norm.foreach": _foreach_norm,
    "cumsum": _scan,
    "cumprod": _scan,
    "_softmax": _softmax,
    "_safe_softmax": _safe_softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "sort": _sort,
    "topk": _topk,
}
