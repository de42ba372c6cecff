"""Reading and writing at places that tensors tell: indices, gathers, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.fake.layout import broadcast, contiguous, dense_like, expanded, iterated, wrap_dim
from bothways.fake.promotion import FLOATING, REAL
from bothways.fake.tensor import NeedsData, NotThin, Shape, SizedByData, Spec, ThinTensor

INDICES = frozenset({torch.int64, torch.int32})
REDUCTIONS = frozenset({"sum", "prod", "mean", "amax", "amin"})


def _new(shape: Shape, dtype: torch.dtype) -> Spec:
    return Spec(shape, contiguous(shape), dtype)


def _check_index(*indices: ThinTensor) -> None:
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        raise NeedsData("how much a mask selects depends on its elements")
    if any(index.dtype not in INDICES for index in indices):
        raise NotThin("indices of another dtype")


def _index(tensor: ThinTensor, indices: Sequence[ThinTensor | None]) -> Spec:
    """TensorIterator over the tensor, with the indexed dimensions standing still, and the indices."""
    by_dim = {dim: index for dim, index in enumerate(indices) if index is not None}
    _check_index(*by_dim.values())
    if len(indices) > tensor.dim() or not by_dim or 0 in tensor.shape:
        raise NotThin("more indices than dimensions, or nothing to index")
    order = list(range(tensor.dim()))
    dims = sorted(by_dim)
    if dims[-1] - dims[0] + 1 != len(dims):  # not side by side: the result has them in front
        order = dims + [dim for dim in order if dim not in by_dim]
    picked = broadcast(tuple(tuple(index.shape) for index in by_dim.values()))
    at = order.index(dims[0])
    before, after = order[:at], order[at + len(dims) :]
    shape = (*(tensor.shape[dim] for dim in before), *picked, *(tensor.shape[dim] for dim in after))
    steps = tensor.stride()
    stride = (*(steps[dim] for dim in before), *(0,) * len(picked), *(steps[dim] for dim in after))
    shapes, strides = [shape], [stride]
    for dim in dims:
        index = by_dim[dim]
        own, step = tuple(index.shape), index.stride()
        if index.dtype is not torch.int64:
            step = dense_like(own, step)
        shapes.append((1,) * len(before) + picked + (1,) * len(after))
        strides.append((0,) * len(before) + expanded(picked, own, step) + (0,) * len(after))
    return Spec(*iterated(tuple(shapes), tuple(strides)), tensor.dtype)


def _index_put(
    tensor: ThinTensor, indices: Sequence[ThinTensor | None], values: ThinTensor, accumulate: bool = False
) -> Spec:
    if values.dtype is not tensor.dtype or 0 in tensor.shape:
        raise NotThin("values of another dtype")
    if values.numel() != 1:
        shape = _index(tensor, indices).shape
        if broadcast((tuple(values.shape), shape)) != shape:
            raise NotThin("values that do not fit")
    else:
        _check_places(tensor, indices)
    return _copy_of(tensor)


def _check_places(tensor: ThinTensor, indices: Sequence[ThinTensor | None]) -> None:
    """Masks are fine where only one value is written: how many places there are does not matter."""
    dim = 0
    for index in indices:
        if index is not None and index.dtype is torch.bool:
            if index.shape != tensor.shape[dim : dim + index.dim()] or not index.dim():
                raise NotThin("a mask that does not fit")
            dim += index.dim()
        else:
            if index is not None:
                _check_index(index)
            dim += 1
    if dim > tensor.dim():
        raise NotThin("more indices than dimensions")
    whole = [tuple(index.shape) for index in indices if index is not None and index.dtype is not torch.bool]
    if whole:
        broadcast(tuple(whole))
        if len(whole) != sum(index is not None for index in indices):
            raise NotThin("masks and indices together")


def _copy_of(tensor: ThinTensor) -> Spec:
    shape = tuple(tensor.shape)
    return Spec(shape, dense_like(shape, tensor.stride()), tensor.dtype)


def _gather(tensor: ThinTensor, dim: int, index: ThinTensor, *, sparse_grad: bool = False) -> Spec:
    _check_picks(tensor, dim, index)
    return _new(tuple(index.shape), tensor.dtype)


def _check_picks(tensor: ThinTensor, dim: int, index: ThinTensor) -> None:
    """An index for every element that is read: no longer than the tensor in the other dimensions."""
    dim = wrap_dim(dim, tensor.dim())
    if index.dtype is not torch.int64 or index.dim() != tensor.dim():
        raise NotThin("an index with other dimensions")
    pairs = zip(index.shape, tensor.shape, strict=True)
    if any(size > limit for at, (size, limit) in enumerate(pairs) if at != dim):
        raise NotThin("an index that is larger than the tensor")


def _scatter(tensor: ThinTensor, dim: int, index: ThinTensor, source: Any, **options: Any) -> Spec:
    _check_picks(tensor, dim, index)
    if isinstance(source, torch.Tensor):
        if source.dtype is not tensor.dtype or source.dim() != tensor.dim():
            raise NotThin("a source that does not fit")
        if any(size > limit for size, limit in zip(index.shape, source.shape, strict=True)):
            raise NotThin("an index that is larger than the source")
    return _new(tuple(tensor.shape), tensor.dtype)


def _scatter_reduce(
    tensor: ThinTensor, dim: int, index: ThinTensor, source: ThinTensor, reduce: str, *, include_self: bool = True
) -> Spec:
    if reduce not in REDUCTIONS or tensor.dtype not in FLOATING:
        raise NotThin("a reduction that not every dtype has")
    return _scatter(tensor, dim, index, source)


def _index_select(tensor: ThinTensor, dim: int, index: ThinTensor) -> Spec:
    _check_index(index)
    shape = list(tensor.shape)
    dim = wrap_dim(dim, len(shape))
    if index.dim() > 1 or not shape or not shape[dim] or tensor.dtype not in REAL:
        raise NotThin("an index of several dimensions")
    shape[dim] = index.numel()
    return _new(tuple(shape), tensor.dtype)


def _index_add(tensor: ThinTensor, dim: int, index: ThinTensor, source: ThinTensor, *, alpha: Any = 1) -> Spec:
    _check_index(index)
    dim = wrap_dim(dim, tensor.dim())
    wanted = list(tensor.shape)
    if not wanted or index.dim() != 1 or source.dtype is not tensor.dtype or source.dim() != tensor.dim():
        raise NotThin("a source that does not fit")
    wanted[dim] = index.numel()
    if list(source.shape) != wanted or (type(alpha) is float and tensor.dtype not in FLOATING):
        raise NotThin("a source that does not fit")
    return _new(tuple(tensor.shape), tensor.dtype)


def _masked_scatter(operand: ThinTensor, mask: ThinTensor, source: ThinTensor) -> Spec:
    if mask.dtype is not torch.bool or source.dtype is not operand.dtype:
        raise NotThin("a mask that is not boolean, or a source of another dtype")
    if any(type(size) is int and not size for size in source.shape):
        raise NotThin("a source without elements")
    return _new(broadcast((tuple(operand.shape), tuple(mask.shape))), operand.dtype)


def _embedding(weight: ThinTensor, indices: ThinTensor, *parameters: Any) -> Spec:
    _check_index(indices)
    if weight.dim() != 2 or not weight.shape[0]:
        raise NotThin("a table of other than two dimensions")
    return _new((*indices.shape, weight.shape[1]), weight.dtype)


def _embedding_backward(grad: ThinTensor, indices: ThinTensor, rows: int, *parameters: Any) -> Spec:
    _check_index(indices)
    if tuple(grad.shape[:-1]) != tuple(indices.shape):
        raise NotThin("a gradient that does not fit")
    return _new((rows, grad.shape[-1]), grad.dtype)


def _needs_data(*args: Any, **options: Any) -> Spec:
    raise NeedsData("what it gives depends on the elements")


def _sized_by_data(*args: Any, **options: Any) -> Spec:
    raise SizedByData("how much it gives depends on the elements")


RULES = {
    **dict.fromkeys("_local_scalar_dense equal is_nonzero".split(), _needs_data),
    **dict.fromkeys(
        "nonzero masked_select bincount unique_dim _unique _unique2 unique_consecutive unique_dim_consecutive "
        "repeat_interleave.Tensor".split(),
        _sized_by_data,
    ),
    "index.Tensor": _index,
    "_unsafe_index.Tensor": _index,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "gather": _gather,
    "scatter.src": _scatter,
    "scatter.value": _scatter,
    "scatter_add": _scatter,
    "scatter_reduce.two": _scatter_reduce,
    "masked_scatter": _masked_scatter,
    "index_select": _index_select,
    "index_add": _index_add,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
}
