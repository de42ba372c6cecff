"""How PyTorch lays tensors out: which strides a result has, from the sizes and strides of what it is made from.

These are the orders that TensorIterator and the memory formats define, on plain tuples. Every function is pure, so
the answers are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import TypeVar

import torch

from bothways.fake.tensor import NotThin, Shape, Spec, ThinMemory, ThinTensor, fresh, offset, view
from bothways.symbols import hint

# From the innermost to the outermost dimension.
CHANNELS_LAST_ORDER = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
RANK = {torch.channels_last: 4, torch.channels_last_3d: 5}
FORMAT = {4: torch.channels_last, 5: torch.channels_last_3d}

F = TypeVar("F", bound=Callable[..., object])


def remembered(count: int) -> Callable[[F], F]:
    """Keep the last answers. Those about symbolic sizes, which cannot be looked up, are worked out each time: finding
    them notes what they assume."""

    def decorate(function: F) -> F:
        known = lru_cache(count)(function)

        @wraps(function)
        def ask(*args: object) -> object:
            try:
                return known(*args)
            except TypeError:
                return function(*args)

        return ask  # type: ignore[return-value]

    return decorate


def same_sizes(one: Shape, other: Shape) -> bool:
    """Whether shapes are equal; sizes are compared only where the number of dimensions is the same."""
    return len(one) == len(other) and one == other


@remembered(4096)
def contiguous(shape: Shape) -> Shape:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size or 1
    return tuple(reversed(strides))


@remembered(1024)
def channels_last(shape: Shape) -> Shape:
    order = CHANNELS_LAST_ORDER.get(len(shape))
    if order is None:
        raise NotThin("channels_last needs four or five dimensions")
    return strides_in_order(shape, order)


def strides_in_order(shape: Shape, order: Sequence[int]) -> Shape:
    """Dense strides whose innermost dimension is the first in ``order``."""
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def in_format(shape: Shape, stride: Shape, memory_format: torch.memory_format | None) -> Shape:
    """The strides of a copy of a tensor; without a format those it has, as far as they are dense."""
    if memory_format is None or memory_format is torch.preserve_format:
        return dense_like(shape, stride)
    if memory_format is torch.contiguous_format:
        return contiguous(shape)
    if RANK[memory_format] != len(shape):
        raise NotThin("a memory format for another number of dimensions")
    return channels_last(shape)


@remembered(4096)
def is_contiguous(shape: Shape, stride: Shape) -> bool:
    if 0 in shape:
        return True
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


def is_channels_last(shape: Shape, stride: Shape) -> bool:
    """Whether the tensor is exactly laid out as ``channels_last``, which is a format of four dimensions."""
    return len(shape) == 4 and _is_in_order(shape, stride, CHANNELS_LAST_ORDER[4])


def _is_in_order(shape: Shape, stride: Shape, order: Sequence[int]) -> bool:
    expected = 1
    for dim in order:
        if shape[dim] != 1:
            if stride[dim] != expected:
                return False
            expected *= shape[dim]
    return True


@remembered(4096)
def is_dense(shape: Shape, stride: Shape) -> bool:
    """Whether the elements lie side by side, each once, in whatever order of dimensions."""
    if is_contiguous(shape, stride):
        return True
    expected = 1
    pairs = [(step, size) for size, step in zip(shape, stride, strict=True) if size > 1]
    for step, size in sorted(pairs, key=lambda pair: (hint(pair[0]), hint(pair[1]))):
        if step != expected:
            return False
        expected *= size
    return True


@remembered(4096)
def suggested_format(shape: Shape, stride: Shape) -> torch.memory_format:
    """The memory format PyTorch reads off the strides, which need not be exact."""
    order = CHANNELS_LAST_ORDER.get(len(shape))
    if order is None or stride[1] == 0:
        return torch.contiguous_format
    least = 0
    for dim in order:
        if shape[dim] == 0 or stride[dim] < least or (dim == 0 and least == stride[1]):
            return torch.contiguous_format
        least = stride[dim] * max(shape[dim], 1)
    return FORMAT[len(shape)]


def suggested_strides(tensor: ThinTensor, shape: Shape) -> Shape:
    """Strides for a result of ``shape`` in the memory format of ``tensor``."""
    if suggested_format(tuple(tensor.shape), tensor.stride()) is torch.contiguous_format:
        return contiguous(shape)
    return channels_last(shape)


@remembered(4096)
def dense_like(shape: Shape, stride: Shape) -> Shape:
    """The strides of a copy that preserves the layout: those of the tensor, without gaps and repetitions."""
    if is_dense(shape, stride):
        return stride
    if len(shape) < 2:
        return (1,) * len(shape)
    order = iteration_order(shape, (stride,))
    return strides_in_order(tuple(size or 1 for size in shape), order)


def copy_of_memory(tensor: ThinTensor) -> ThinTensor:
    """A copy of a tensor with all of the memory it is in: strides and offset stay, gaps included."""
    shape, stride, begin = tuple(tensor.shape), tensor.stride(), offset(tensor)
    if any(size > 1 and not step for size, step in zip(shape, stride, strict=True)):
        return fresh(Spec(shape, dense_like(shape, stride), tensor.dtype), tensor.device)
    copy = view(tensor, shape, stride, begin)
    copy.memory = ThinMemory(Spec(shape, stride, tensor.dtype), begin, tensor.memory.nbytes())
    return copy


def iteration_order(shape: Shape, strides: Sequence[Shape]) -> list[int]:
    """TensorIterator's order of dimensions, innermost first: an insertion sort that leaves ambiguous pairs alone."""
    order = list(reversed(range(len(shape))))
    for position in range(1, len(order)):
        later = position
        for earlier in reversed(range(position)):
            comparison = _compare(order[earlier], order[later], shape, strides)
            if comparison > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
            elif comparison < 0:
                break
    return order


def _compare(one: int, other: int, shape: Shape, strides: Sequence[Shape]) -> int:
    """Positive when dimension ``one`` has to come after the other; the first operand that can tell decides."""
    for stride in strides:
        left, right = stride[one], stride[other]
        if left and right:
            if left != right:
                return -1 if left < right else 1
            if shape[one] > shape[other]:
                return 1
    return 0


@remembered(8192)
def iterated(shapes: tuple[Shape, ...], strides: tuple[Shape, ...]) -> tuple[Shape, Shape]:
    """The sizes and strides of what a pointwise operation makes of these operands."""
    first = shapes[0]
    if all(same_sizes(shape, first) for shape in shapes):
        same = list(zip(shapes, strides, strict=True))
        if all(is_contiguous(*operand) for operand in same):
            return first, contiguous(first)
        if all(is_channels_last(*operand) for operand in same):
            return first, channels_last(first)
        if all(same_sizes(stride, strides[0]) for stride in strides) and is_dense(first, strides[0]):
            return first, strides[0]
    shape = broadcast(shapes)
    if len(shape) < 2:
        return shape, contiguous(shape)
    order = iteration_order(shape, [expanded(shape, *operand) for operand in zip(shapes, strides, strict=True)])
    if order == list(reversed(range(len(shape)))):
        return shape, contiguous(shape)
    return shape, strides_in_order(shape, order)


def expanded(shape: Shape, own: Shape, stride: Shape) -> Shape:
    """The strides with which an operand is read for a result of ``shape``: 0 where it repeats."""
    missing = len(shape) - len(own)
    pairs = zip(shape[missing:], own, stride, strict=True)
    return (0,) * missing + tuple(0 if size == 1 != wanted else step for wanted, size, step in pairs)


@remembered(4096)
def broadcast(shapes: tuple[Shape, ...]) -> Shape:
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for dim, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[dim] != 1 and result[dim] != size:
                    raise NotThin(f"{shapes} do not broadcast")
                result[dim] = size
    return tuple(result)


def wrap_dim(dim: int, rank: int) -> int:
    """A dimension counted from the end, counted from the beginning; a scalar has one for this purpose."""
    limit = rank or 1
    if not -limit <= dim < limit:
        raise NotThin(f"dimension {dim} of {rank}")
    return dim + limit if dim < 0 else dim
