"""Views: new sizes and strides over the memory of the argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from bothways.fake.layout import contiguous, copy_of_memory, wrap_dim
from bothways.fake.promotion import COMPLEX_OF
from bothways.fake.tensor import NotThin, Shape, ThinTensor, extent, offset, view
from bothways.symbols import hint

OPEN_END = 2**63 - 1  # what PyTorch makes of ``x[1:]``


def _geometry(tensor: ThinTensor) -> tuple[list[int], list[int]]:
    return list(tensor.shape), list(tensor.stride())


def _like(tensor: ThinTensor, shape: Sequence[int], stride: Sequence[int], further: int = 0) -> ThinTensor:
    return view(tensor, tuple(shape), tuple(stride), offset(tensor) + further)


def same(tensor: ThinTensor, *ignored: Any) -> ThinTensor:
    return view(tensor, tuple(tensor.shape), tensor.stride(), offset(tensor))


def _view(tensor: ThinTensor, size: Sequence[int]) -> ThinTensor:
    shape = tuple(tensor.shape)
    wanted = inferred(size, prod(shape))
    stride = viewed(shape, tensor.stride(), wanted)
    if stride is None:
        raise NotThin(f"{wanted} is no view of {shape}")
    return _like(tensor, wanted, stride)


def inferred(size: Sequence[int], count: int) -> Shape:
    """The sizes with -1 replaced by what is left."""
    shape = list(size)
    if -1 in shape:
        free = shape.index(-1)
        rest = prod(shape[:free]) * prod(shape[free + 1 :])
        if not rest or count % rest or -1 in shape[free + 1 :]:
            raise NotThin(f"{size} of {count} elements")
        shape[free] = count // rest
    if prod(shape) != count or any(part < 0 for part in shape):
        raise NotThin(f"{size} of {count} elements")
    return tuple(shape)


def viewed(shape: Shape, stride: Shape, wanted: Shape) -> Shape | None:
    """The strides that show the same elements in other sizes, or None when there are none."""
    if not shape:
        return (1,) * len(wanted)
    if 0 in shape:
        return stride if shape == wanted else contiguous(wanted)
    strides = [0] * len(wanted)
    at = len(wanted) - 1
    step, here, there = stride[-1], 1, 1  # of the run of dimensions that lie side by side
    for dim in reversed(range(len(shape))):
        here *= shape[dim]
        if dim and (shape[dim - 1] == 1 or stride[dim - 1] == here * step):
            continue
        while at >= 0 and (there < here or wanted[at] == 1):
            strides[at] = there * step
            there *= wanted[at]
            at -= 1
        if there != here:
            return None
        if dim:
            step, here, there = stride[dim - 1], 1, 1
    return tuple(strides) if at < 0 else None


def _view_dtype(tensor: ThinTensor, dtype: torch.dtype) -> ThinTensor:
    if dtype.itemsize != tensor.dtype.itemsize:
        raise NotThin("a view with other sizes of elements")
    return view(tensor, tuple(tensor.shape), tensor.stride(), offset(tensor), dtype)


def _expand(tensor: ThinTensor, size: Sequence[int], *, implicit: bool = False) -> ThinTensor:
    shape, stride = _geometry(tensor)
    new = len(size) - len(shape)
    if new < 0 or (not shape and -1 in size):
        raise NotThin("fewer dimensions than there are")
    if not shape:
        return _like(tensor, size, (0,) * len(size))
    sizes, strides = list(size), [0] * len(size)
    for dim in reversed(range(len(size))):
        own = shape[dim - new] if dim >= new else 1
        step = stride[dim - new] if dim >= new else (sizes[dim + 1] * strides[dim + 1] if dim + 1 < len(size) else 1)
        if sizes[dim] == -1 and dim >= new:
            sizes[dim] = own
        if sizes[dim] < 0 or own not in (1, sizes[dim]):
            raise NotThin(f"{shape} does not expand to {size}")
        strides[dim] = step if own == sizes[dim] else 0
    return _like(tensor, sizes, strides)


def _permute(tensor: ThinTensor, dims: Sequence[int]) -> ThinTensor:
    shape, stride = _geometry(tensor)
    order = [wrap_dim(dim, len(shape)) for dim in dims]
    if sorted(order) != list(range(len(shape))):
        raise NotThin(f"{dims} is no permutation")
    return _like(tensor, [shape[dim] for dim in order], [stride[dim] for dim in order])


def _transpose(tensor: ThinTensor, one: int, other: int) -> ThinTensor:
    shape, stride = _geometry(tensor)
    one, other = wrap_dim(one, len(shape)), wrap_dim(other, len(shape))
    if shape:
        for values in (shape, stride):
            values[one], values[other] = values[other], values[one]
    return _like(tensor, shape, stride)


def _t(tensor: ThinTensor) -> ThinTensor:
    shape, stride = _geometry(tensor)
    if len(shape) > 2:
        raise NotThin("t of more than two dimensions")
    return _like(tensor, shape[::-1], stride[::-1])


def _unsqueeze(tensor: ThinTensor, dim: int) -> ThinTensor:
    shape, stride = _geometry(tensor)
    dim = wrap_dim(dim, len(shape) + 1)
    stride.insert(dim, shape[dim] * stride[dim] if dim < len(shape) else 1)
    shape.insert(dim, 1)
    return _like(tensor, shape, stride)


def _squeeze(tensor: ThinTensor, dims: int | Sequence[int] | None = None) -> ThinTensor:
    shape, stride = _geometry(tensor)
    rank = len(shape)
    chosen = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {wrap_dim(dim, rank) for dim in chosen}
    if len(gone) != len(chosen):
        raise NotThin("a dimension twice")
    kept = [dim for dim in range(rank) if shape[dim] != 1 or dim not in gone]
    return _like(tensor, [shape[dim] for dim in kept], [stride[dim] for dim in kept])


def _slice(
    tensor: ThinTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> ThinTensor:
    shape, stride = _geometry(tensor)
    if not shape or step < 1:
        raise NotThin("a slice of a scalar, or backwards")
    dim = wrap_dim(dim, len(shape))
    first, shape[dim] = sliced(start, end, step, shape[dim])
    further = first * stride[dim]
    stride[dim] *= step
    return _like(tensor, shape, stride, further)


def sliced(start: int | None, end: int | None, step: int, size: int) -> tuple[int, int]:
    """Where a slice of so many elements begins, and how many it has; any of the numbers may be a symbol."""
    first = 0 if start is None else _inside(start, size)
    last = size if end is None or (type(end) is int and end >= OPEN_END) else _inside(end, size)
    if last <= first:
        return first, 0
    return first, (last - first + step - 1) // step


def _inside(position: int, size: int) -> int:
    if position < 0:
        position += size
    if position < 0:
        return 0
    return size if position > size else position


def _select(tensor: ThinTensor, dim: int, index: int) -> ThinTensor:
    shape, stride = _geometry(tensor)
    if not shape:
        raise NotThin("select of a scalar")
    dim = wrap_dim(dim, len(shape))
    size, step = shape.pop(dim), stride.pop(dim)
    if not -size <= index < size:
        raise NotThin(f"index {index} of {size}")
    return _like(tensor, shape, stride, (index + size if index < 0 else index) * step)


def _split(tensor: ThinTensor, size: int, dim: int = 0) -> list[ThinTensor]:
    dim = wrap_dim(dim, tensor.dim())
    total = tensor.shape[dim] if tensor.dim() else -1
    if total < 0 or size < 0 or (size == 0 and total):
        raise NotThin("a split of a scalar, or into nothing")
    if not total:
        return [same(tensor)]
    # How many parts there are is a fact of the program; how long they are may be symbols.
    whole = hint((total - 1) // size)
    if not whole * size < total or total > (whole + 1) * size:
        raise NotThin("parts that do not add up")
    return _split_with_sizes(tensor, [size] * whole + [total - whole * size], dim)


def _split_with_sizes(tensor: ThinTensor, sizes: Sequence[int], dim: int = 0) -> list[ThinTensor]:
    dim = wrap_dim(dim, tensor.dim())
    if not tensor.dim() or sum(sizes) != tensor.shape[dim] or any(size < 0 for size in sizes):
        raise NotThin("sizes that do not add up")
    shape, stride = _geometry(tensor)
    parts, begin = [], 0
    for size in sizes:
        shape[dim] = size
        parts.append(_like(tensor, shape, stride, begin * stride[dim]))
        begin += size
    return parts


def _unbind(tensor: ThinTensor, dim: int = 0) -> list[ThinTensor]:
    if not tensor.dim():
        raise NotThin("unbind of a scalar")
    return [_select(tensor, dim, index) for index in range(tensor.shape[wrap_dim(dim, tensor.dim())])]


def _as_strided(
    tensor: ThinTensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> ThinTensor:
    shape, steps = tuple(size), tuple(stride)
    begin = offset(tensor) if storage_offset is None else storage_offset
    if len(shape) != len(steps) or any(part < 0 for part in (*shape, *steps, begin)):
        raise NotThin("sizes and strides that do not suit")
    if extent(shape, steps, begin) * tensor.dtype.itemsize > tensor.memory.nbytes():
        raise NotThin("a window that is larger than the memory")
    return view(tensor, shape, steps, begin)


def _diagonal(tensor: ThinTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> ThinTensor:
    shape, stride = _geometry(tensor)
    one, other = wrap_dim(dim1, len(shape)), wrap_dim(dim2, len(shape))
    if one == other or not shape:
        raise NotThin("a diagonal of one dimension")
    rows, columns = (shape[one], shape[other] - offset) if offset >= 0 else (shape[one] + offset, shape[other])
    length = max(min(rows, columns), 0)
    further = abs(offset) * (stride[other] if offset >= 0 else stride[one]) if length else 0
    kept = [dim for dim in range(len(shape)) if dim not in (one, other)]
    return _like(
        tensor,
        [*(shape[dim] for dim in kept), length],
        [*(stride[dim] for dim in kept), stride[one] + stride[other]],
        further,
    )


def _unfold(tensor: ThinTensor, dimension: int, size: int, step: int) -> ThinTensor:
    shape, stride = _geometry(tensor)
    if not shape:
        raise NotThin("unfold of a scalar")
    dim = wrap_dim(dimension, len(shape))
    if size < 0 or size > shape[dim] or step < 1:
        raise NotThin("windows that do not fit")
    stride.append(stride[dim])
    shape[dim] = (shape[dim] - size) // step + 1
    shape.append(size)
    stride[dim] *= step
    return _like(tensor, shape, stride)


def _as_complex(tensor: ThinTensor) -> ThinTensor:
    """Pairs of numbers that lie side by side, all at even places."""
    shape, stride = _geometry(tensor)
    if tensor.dtype not in COMPLEX_OF or not shape or shape[-1] != 2 or stride[-1] != 1 or offset(tensor) % 2:
        raise NotThin("no pairs of numbers")
    if any(step % 2 for step in stride[:-1]):
        raise NotThin("pairs at odd places")
    strides = tuple(step // 2 for step in stride[:-1])
    return view(tensor, tuple(shape[:-1]), strides, offset(tensor) // 2, COMPLEX_OF[tensor.dtype])


def _conj(tensor: ThinTensor) -> ThinTensor:
    """The same memory, read otherwise; a bit of the tensor says so, and only operations of PyTorch's own see these."""
    if tensor.dtype not in COMPLEX_OF.values():
        raise NotThin("numbers without an imaginary part")
    return same(tensor)


def _as_real(tensor: ThinTensor) -> ThinTensor:
    shape, stride = _geometry(tensor)
    dtype = next((real for real, whole in COMPLEX_OF.items() if whole is tensor.dtype), None)
    if dtype is None:
        raise NotThin("numbers without an imaginary part")
    return view(tensor, (*shape, 2), (*(step * 2 for step in stride), 1), offset(tensor) * 2, dtype)


def _written(part: Callable[..., ThinTensor]) -> Callable[..., ThinTensor]:
    """A copy of a tensor in which one part is replaced."""

    def rule(tensor: ThinTensor, source: ThinTensor, *parameters: Any, **options: Any) -> ThinTensor:
        if part(tensor, *parameters, **options).shape != source.shape:
            raise NotThin("a source that does not fit")
        return copy_of_memory(tensor)

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "view": _view,
    "view.dtype": _view_dtype,
    "_unsafe_view": _view,
    "_reshape_alias": _as_strided,
    "alias": same,
    "detach": same,
    "_conj": _conj,
    "lift_fresh": lambda tensor: tensor,
    "expand": _expand,
    "permute": _permute,
    "transpose.int": _transpose,
    "t": _t,
    "unsqueeze": _unsqueeze,
    "squeeze.default": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "slice.Tensor": _slice,
    "select.int": _select,
    "split.Tensor": _split,
    "split_with_sizes": _split_with_sizes,
    "unsafe_split.Tensor": _split,
    "unsafe_split_with_sizes": _split_with_sizes,
    "unbind.int": _unbind,
    "as_strided": _as_strided,
    "view_as_complex": _as_complex,
    "view_as_real": _as_real,
    "diagonal": _diagonal,
    "unfold": _unfold,
    "slice_scatter": _written(_slice),
    "select_scatter": _written(_select),
    "diagonal_scatter": _written(_diagonal),
    "as_strided_scatter": _written(_as_strided),
}
