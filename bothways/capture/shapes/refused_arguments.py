"""Numbers, dtypes and biases that operations refuse, or answer in a way that no rule for shapes tells.

ATen's kernels look at them; rules for shapes do not, and kernels of ours are made for what is allowed. The first kind
is the user's own error, the second a break at the operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bothways import ops
from bothways.capture.shapes.fakes import Fake, FakeFailure
from bothways.fake.promotion import COMPLEX_OF

Arguments = Sequence[Any]
Refusal = Callable[[Arguments, dict[str, Any]], Exception | None]


def _unless(place: int | Sequence[int], name: str, is_taken: Callable[[Any], bool]) -> Refusal:
    """Of an argument that is no tensor, at the last of the places that there are. Comparisons with NaN say that it is
    not taken."""
    places = [place] if isinstance(place, int) else place

    def refusal(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
        value = next((args[at] for at in reversed(places) if at < len(args)), kwargs.get(name))
        if value is None or isinstance(value, Fake) or (not isinstance(value, complex) and is_taken(value)):
            return None
        return ValueError(f"{name} is {value!r}")

    return refusal


def _of_two_dtypes(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    """Losses that give the dtype of their input, at least on a CPU, where shapes have the common one."""
    dtypes = {arg.dtype for arg in (*args, *kwargs.values()) if isinstance(arg, Fake)}
    return NotImplementedError("tensors of two dtypes") if len(dtypes) > 1 else None


def _into(dtype_of: Callable[[torch.dtype], torch.dtype | None]) -> Refusal:
    """What ``out=`` has to be of, by the dtype of the first argument."""

    def refusal(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
        out, first = kwargs.get("out"), args[0] if args else None
        if not isinstance(out, Fake) or not isinstance(first, Fake) or out.dtype is dtype_of(first.dtype):
            return None
        return ValueError(f"out= is of {out.dtype}")

    return refusal


def _is_bound(number: Any) -> bool:
    """Up to the largest of the tensor's dtype: what half precision holds is allowed for certain."""
    return bool(0 <= number <= torch.finfo(torch.float16).max)


def _huber(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    return _unless(3, "delta", lambda delta: delta > 0)(args, kwargs) or _of_two_dtypes(args, kwargs)


def _of_no_tensors(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    first = args[0] if args else next(iter(kwargs.values()), None)
    is_empty = isinstance(first, (list, tuple)) and not first
    return RuntimeError("Tensor list must have at least one tensor.") if is_empty else None


def _of_nothing(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    """One of several elements, where there is none; along a dimension it is one of each row."""
    operand, *others = [*args, *kwargs.values()] or [None]
    if not isinstance(operand, Fake) or any(isinstance(other, Fake) for other in others):
        return None
    sizes, dim = list(operand.shape), next((value for value in others if type(value) is int), None)
    if dim is not None:
        sizes = sizes[dim : dim + 1 or None] if -len(sizes) <= dim < len(sizes) else []
    return IndexError("there are no elements") if any(type(size) is int and size == 0 for size in sizes) else None


def _of_empty_rows(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    """Those that give NaN for no elements at all."""
    return _of_nothing(args, kwargs) if len(args) + len(kwargs) > 1 else None


def _arguments_of(args: Arguments, kwargs: dict[str, Any], names: str) -> Iterator[Any]:
    """What an operation has for each of its names, which are in the order of its arguments."""
    by_place = dict(zip(names.split(), args, strict=False))
    return (by_place.get(name, kwargs.get(name)) for name in names.split())


def _adding(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    added, _, factor = _arguments_of(args, kwargs, "input mat1 mat2")
    return _unless_fits(added, factor, -1)


def _linear(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    _, weight, bias = _arguments_of(args, kwargs, "input weight bias")
    return _unless_fits(bias, weight, 0)


def _unless_fits(added: Any, factor: Any, dim: int) -> Exception | None:
    """What is added to a product has its columns, which are along ``dim`` of the factor, or one for all."""
    if not isinstance(added, Fake) or not isinstance(factor, Fake) or not added.shape or len(factor.shape) != 2:
        return None
    is_right = added.shape[-1] == factor.shape[dim] or added.shape[-1] == 1
    return None if is_right else ValueError(f"{added.shape[-1]} columns are added to {factor.shape[dim]}")


def _convolution(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    _, weight, bias = _arguments_of(args, kwargs, "input weight bias")
    return _unless_of_channels(bias, weight, 0, 1)


def _transposed(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    _, weight, bias, *_, groups = _arguments_of(args, kwargs, "input weight bias stride padding output_padding groups")
    return _unless_of_channels(bias, weight, 1, 1 if groups is None else groups)


def _unless_of_channels(bias: Any, weight: Any, dim: int, groups: int) -> Exception | None:
    if not isinstance(bias, Fake) or not isinstance(weight, Fake) or len(weight.shape) < 3:
        return None
    channels = weight.shape[dim] * groups
    is_right = len(bias.shape) == 1 and bias.shape[0] == channels
    return None if is_right else ValueError(f"a bias of {tuple(bias.shape)} for {channels} channels")


def _scattered(names: str, part_of: Callable[..., Sequence[Any]]) -> Refusal:
    """What replaces a part of a copy has that part's shape; ``names`` are those that say which part it is."""

    def refusal(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
        tensor, source, *where = _arguments_of(args, kwargs, f"input src {names}")
        if not isinstance(tensor, Fake) or not isinstance(source, Fake) or any(isinstance(one, Fake) for one in where):
            return None
        try:
            part = part_of(list(tensor.shape), *where)
        except IndexError as error:
            return error
        is_right = len(part) == len(source.shape) and all(map(operator.eq, part, source.shape))
        return None if is_right else RuntimeError(f"a part of {tuple(part)} is replaced by {tuple(source.shape)}")

    return refusal


def _row(sizes: list[Any], dim: int, index: int) -> list[Any]:
    size = sizes.pop(dim)
    if not -size <= index < size:
        raise IndexError(f"{index} of {size}")
    return sizes


def _slice(sizes: list[Any], dim: int | None, start: Any, end: Any, step: int | None) -> list[Any]:
    dim, step = dim or 0, 1 if step is None else step
    if step <= 0:
        raise IndexError(f"a step of {step}")
    size = sizes[dim]
    first = _within(0 if start is None else start, size)
    last = _within(size if end is None else end, size)
    sizes[dim] = (last - first + step - 1) // step if last > first else 0
    return sizes


def _within(place: Any, size: Any) -> Any:
    return max(0, min(size, place + size if place < 0 else place))


def _diagonal(sizes: list[Any], offset: int | None, dim1: int | None, dim2: int | None) -> list[Any]:
    offset, dims = offset or 0, (dim1 or 0, 1 if dim2 is None else dim2)
    rows, columns = (sizes[dim] for dim in dims)
    taken = {dim % len(sizes) for dim in dims}
    if len(taken) < 2:
        raise IndexError(f"the diagonal of dimension {dims[0]} alone")
    length = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    return [*(size for dim, size in enumerate(sizes) if dim not in taken), max(0, length)]


RULES: dict[str, Refusal] = {
    "gelu": _unless(1, "approximate", lambda kind: kind in ("none", "tanh")),
    "softshrink": _unless(1, "lambd", _is_bound),
    "smooth_l1_loss": _unless((3, 5), "beta", lambda beta: beta >= 0),  # ATen's own, and that of ``torch.nn``
    "huber_loss": _huber,
    "soft_margin_loss": _of_two_dtypes,
    "gather": _into(lambda dtype: dtype),
    "addmm": _adding,
    "linear": _linear,
    "select_scatter": _scattered("dim index", _row),
    "slice_scatter": _scattered("dim start end step", _slice),
    "diagonal_scatter": _scattered("offset dim1 dim2", _diagonal),
    "as_strided_scatter": _scattered("size", lambda sizes, size: size),
    **{f"conv{rank}d": _convolution for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _transposed for rank in (1, 2, 3)},
    **dict.fromkeys(("celu", "celu_"), _unless(1, "alpha", lambda alpha: alpha != 0)),
    **dict.fromkeys(("complex", "polar"), _into(COMPLEX_OF.get)),
    **dict.fromkeys(("max", "min"), _of_nothing),
    **dict.fromkeys(("median", "nanmedian"), _of_empty_rows),
    **dict.fromkeys((name for name in dir(torch) if name.startswith("_foreach_")), _of_no_tensors),
}
ops.REFUSALS.update(RULES)


def check_arguments(name: str, args: Arguments, kwargs: dict[str, Any]) -> None:
    """Raise where the operation would, or where nothing but the operation says what it gives."""
    rule = ops.REFUSALS.get(name)
    refusal = None if rule is None else rule(args, kwargs)
    if refusal is not None:
        raise FakeFailure(refusal)
