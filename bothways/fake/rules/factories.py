"""Factories and copies: new tensors from sizes, and in the image of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.fake.layout import broadcast, contiguous, copy_of_memory, in_format, strides_in_order
from bothways.fake.promotion import REAL, number_dtype
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor, fresh

Rule = Callable[..., Any]


def _place(device: Any) -> torch.device:
    if device is None:
        return torch.device("cpu")
    return torch_compat.with_index(torch.device(device))


def _check_options(layout: Any, pin_memory: Any) -> None:
    if layout not in (None, torch.strided) or pin_memory:
        raise NotThin("a layout that is not dense, or pinned memory")


def _new_tensor(shape: Shape, dtype: torch.dtype, device: Any, stride: Shape | None = None) -> ThinTensor:
    if any(size < 0 for size in shape):
        raise NotThin("a negative size")
    return fresh(Spec(shape, contiguous(shape) if stride is None else stride, dtype), _place(device))


def factory(dtype_of: Callable[..., torch.dtype], sizes_at: int = 0) -> Rule:
    """A tensor of the sizes given; ``dtype_of`` tells the dtype from the other arguments when none is asked for."""

    def rule(
        *args: Any,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        memory_format: torch.memory_format | None = None,
        generator: Any = None,
    ) -> ThinTensor:
        _check_options(layout, pin_memory)
        shape = tuple(args[sizes_at])
        stride = in_format(shape, contiguous(shape), memory_format)
        return _new_tensor(shape, dtype or dtype_of(*args), device, stride)

    return rule


def _default(*args: Any) -> torch.dtype:
    return torch.get_default_dtype()


def _integers(*args: Any) -> torch.dtype:
    return torch.int64


def _of_value(size: Any, value: Any) -> torch.dtype:
    return number_dtype(value)


def _empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> ThinTensor:
    """Dimensions in the order in which they lie in memory, the outermost first."""
    if sorted(physical_layout) != list(range(len(size))):
        raise NotThin("an order of other dimensions")
    return _empty_strided(size, strides_in_order(tuple(size), physical_layout[::-1]), **options)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> ThinTensor:
    _check_options(layout, pin_memory)
    return _new_tensor(tuple(size), dtype or torch.get_default_dtype(), device, tuple(stride))


def _scalar_tensor(value: Any, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> ThinTensor:
    _check_options(options.get("layout"), options.get("pin_memory"))
    return _new_tensor((), dtype or torch.get_default_dtype(), device)


def _arange(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> ThinTensor:
    _check_options(options.get("layout"), options.get("pin_memory"))
    start, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    whole = all(type(bound) is int or isinstance(bound, torch.SymInt) for bound in (start, end, step))
    if not (whole or all(type(bound) in (int, float) for bound in bounds)) or step == 0:
        raise NotThin("a range that goes nowhere")
    if (end < start) if step > 0 else (end > start):
        raise NotThin("a range that goes nowhere")
    if dtype is None:
        dtype = torch.int64 if whole else torch.get_default_dtype()
    if not whole and dtype not in (torch.float32, torch.float64):
        raise NotThin("fractions in a range of integers")
    return _new_tensor((-((start - end) // step) if whole else math.ceil((end - start) / step),), dtype, device)


def _randperm(count: int, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> ThinTensor:
    _check_options(options.get("layout"), options.get("pin_memory"))
    return _new_tensor((count,), dtype or torch.int64, device)


def _eye(
    rows: int, columns: int | None = None, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any
) -> ThinTensor:
    _check_options(options.get("layout"), options.get("pin_memory"))
    return _new_tensor((rows, rows if columns is None else columns), dtype or torch.get_default_dtype(), device)


def _linspace(
    start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any
) -> ThinTensor:
    _check_options(options.get("layout"), options.get("pin_memory"))
    if any(type(bound) not in (int, float) for bound in (start, end)):
        raise NotThin("bounds that are tensors")
    return _new_tensor((steps,), dtype or torch.get_default_dtype(), device)


def like(
    tensor: ThinTensor,
    *parameters: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: torch.memory_format | None = None,
    non_blocking: bool = False,
    generator: Any = None,
) -> ThinTensor:
    """A tensor of the same sizes, laid out alike, with what else is asked for."""
    _check_options(layout, pin_memory)
    shape = tuple(tensor.shape)
    stride = in_format(shape, tensor.stride(), memory_format)
    return fresh(Spec(shape, stride, dtype or tensor.dtype), tensor.device if device is None else _place(device))


def _converted(tensor: ThinTensor | complex, *, dtype: torch.dtype | None = None, **options: Any) -> ThinTensor:
    """A tensor in another dtype; ``vmap`` asks for it of a number, which stands for a tensor without dimensions."""
    if isinstance(tensor, ThinTensor):
        return like(tensor, dtype=dtype, **options)
    if dtype is None or any(option is not None for option in options.values()):
        raise NotThin("a number that becomes a tensor by more than its dtype")
    return _new_tensor((), dtype, None)


def _clone(tensor: ThinTensor, *, memory_format: torch.memory_format | None = None) -> Spec:
    shape = tuple(tensor.shape)
    return Spec(shape, in_format(shape, tensor.stride(), memory_format), tensor.dtype)


def _dense(tensor: ThinTensor, *parameters: Any) -> Spec:
    return _clone(tensor)


def _new(
    tensor: ThinTensor,
    size: Sequence[int],
    *parameters: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> ThinTensor:
    _check_options(layout, pin_memory)
    return _new_tensor(tuple(size), dtype or tensor.dtype, tensor.device if device is None else device)


def _new_strided(tensor: ThinTensor, size: Sequence[int], stride: Sequence[int], **options: Any) -> ThinTensor:
    spec = _new(tensor, size, **options)
    return _new_tensor(tuple(size), spec.dtype, spec.device, tuple(stride))


def _copied_into(target: ThinTensor, source: ThinTensor, non_blocking: bool = False) -> ThinTensor:
    shape = tuple(target.shape)
    if broadcast((tuple(source.shape), shape)) != shape or not {source.dtype, target.dtype} <= REAL:
        raise NotThin("a source that does not fit")
    if any(size > 1 and not step for size, step in zip(shape, target.stride(), strict=True)):
        raise NotThin("an expanded tensor is written to")
    return target


def _copy(target: ThinTensor, source: ThinTensor, non_blocking: bool = False) -> ThinTensor:
    """What ``target`` is after a copy into it, as a new tensor."""
    _copied_into(target, source)
    return copy_of_memory(target)


def _filled(tensor: ThinTensor, value: Any) -> ThinTensor:
    if isinstance(value, torch.Tensor) and value.dim():
        raise NotThin("a value to fill with that is not a scalar")
    return tensor


RULES: dict[str, Rule] = {
    "empty.memory_format": factory(_default),
    "zeros": factory(_default),
    "_efficientzerotensor": factory(_default),
    "ones": factory(_default),
    "full": factory(_of_value),
    "rand": factory(_default),
    "randn": factory(_default),
    "randint.default": factory(_integers, 1),
    "randint.generator": factory(_integers, 1),
    "randint.low": factory(_integers, 2),
    "randint.low_generator": factory(_integers, 2),
    "empty_strided": _empty_strided,
    "empty_permuted": _empty_permuted,
    "scalar_tensor": _scalar_tensor,
    "arange": _arange,
    "randperm": _randperm,
    "eye": _eye,
    "linspace": _linspace,
    "empty_like": like,
    "zeros_like": like,
    "ones_like": like,
    "full_like": like,
    "rand_like": like,
    "randn_like": like,
    "randint_like": like,
    "_to_copy": _converted,
    "clone": _clone,
    "lift_fresh_copy": _clone,
    "fill": _dense,
    "zero": _clone,
    "new_empty": _new,
    "new_zeros": _new,
    "new_ones": _new,
    "new_full": _new,
    "new_empty_strided": _new_strided,
    "copy": _copy,
    "copy_": _copied_into,
    "copy.foreach": lambda target, source, non_blocking=False: _clone(_copied_into(target, source)),
    "zero_": lambda tensor: tensor,
    "fill_": _filled,
}
