"""Operations whose kernels refuse dtypes beside each other that PyTorch's rules for shapes let through: dtypes that are
to be one, and results that do not fit into what they are written to.

Such a node runs as it was captured, so that ATen itself decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.capture.shapes import fakes
from bothways.capture.shapes.fakes import Fake, FakeFailure
from bothways.errors import Unsupported
from bothways.fake import holds
from bothways.fake.promotion import common_dtype, fits_into
from bothways.fake.tensor import NotThin
from bothways.ops import Fails

NUMBERS = (bool, int, float, complex, torch.SymInt, torch.SymFloat)
HALF = (torch.bfloat16, torch.float16)
# Which dtypes hold what an operation in place computes, where that is not the common one of its operands.
HELD: dict[str, Callable[[torch.dtype], bool]] = {
    **dict.fromkeys(("logit", "ldexp"), lambda dtype: dtype.is_floating_point or dtype.is_complex),
    **dict.fromkeys(("cumsum", "cumprod"), lambda dtype: dtype is not torch.bool),
}


def parameters_fit(dtypes: Sequence[torch.dtype]) -> bool:
    """Whether a normalisation takes its operands: half precision has parameters and statistics in single as well."""
    first, *others = dtypes
    if not first.is_floating_point:
        return False
    return all(other is first for other in others) or (
        first in HALF and all(other is torch.float32 for other in others)
    )


def lists_fit(args: Sequence[Any]) -> bool:
    """Whether an update of parameters takes what it is to keep for each: all but counters, which have no sizes."""
    params, *others = (arg for arg in args if isinstance(arg, list | tuple))
    for values in others:
        for param, value in zip(params, values, strict=False):
            if value.dtype is not param.dtype and len(value.shape) == len(param.shape):
                return False
    return all(param.dtype.is_floating_point for param in params)


def may_be_refused(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether ATen may refuse an operation for the dtypes it meets."""
    if ops.named(name).asks_whole and args and isinstance(args[0], Fake):
        dtype = args[0].dtype
        return not (dtype.is_floating_point or dtype.is_complex)
    return _are_several(name, args, kwargs) or narrows(name, args, kwargs) or _overflows(name, args, kwargs)


def _overflows(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a number is given that a tensor's dtype does not hold, where kernels of ours would not ask: in place, and
    on a GPU, whose kernels are not tried; or one that changes from call to call, which it has to hold at all calls."""
    operation = ops.named(name)
    base = ops.named(operation.functional) if operation.writes else operation
    if not base.takes_numbers or not args or not isinstance(args[0], Fake):
        return False
    dtype, operands = args[0].dtype, (*args, *kwargs.values())
    is_asked = operation.writes or args[0].device.type != "cpu"
    numbers = [one for one in operands if type(one) in (int, float)] if is_asked else []
    symbols = [one for one in operands if isinstance(one, (torch.SymInt, torch.SymFloat))]
    return not (all(holds(dtype, number) for number in numbers) and all(_is_held(dtype, one) for one in symbols))


def _is_held(dtype: torch.dtype, number: Any) -> bool:
    """The answer is guarded. Numbers that change are no larger than 64 bits, whatever they are."""
    if dtype in (torch.bool, torch.int64) or dtype.is_complex or (dtype.is_floating_point and dtype != torch.float16):
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return bool(number >= int(limits.min)) and bool(number <= int(limits.max))


def _are_several(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether tensors that have to be of one dtype are of several."""
    operation = ops.named(name)
    fails = ops.named(operation.functional).fails if operation.functional else operation.fails
    if fails is Fails.UNLESS_LISTS_FIT:
        return not lists_fit(args)
    if fails is Fails.UNLESS_PARAMETERS_FIT:
        operands = [operand for operand in (*args, *kwargs.values()) if isinstance(operand, Fake)]
        dtypes = _after_autocast(operand.dtype for operand in operands)
        on_cpu = all(operand.device.type == "cpu" for operand in operands)
        return not parameters_fit(dtypes) or (operation.mixes_on_cpu and not on_cpu and len(set(dtypes)) > 1)
    places = operation.of_one_dtype
    if not places:
        return False
    named: list[Any] = [*(args[place] for place in places if place < len(args)), kwargs.get("weight")]
    return len(set(_after_autocast(operand.dtype for operand in named if isinstance(operand, Fake)))) > 1


def _after_autocast(dtypes: Iterable[torch.dtype]) -> list[torch.dtype]:
    """The dtypes, those alike that autocast makes alike: it leaves double precision and whole numbers as they are."""
    is_on = torch_compat.is_any_autocast_enabled()
    return [torch.float32 if is_on and dtype in HALF else dtype for dtype in dtypes]


def narrows(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation in place would compute numbers of a kind that its tensor does not hold: fractions into whole
    numbers, complex ones into real ones."""
    each = name.removeprefix("_foreach_")
    operation = ops.named(each)
    if not operation.writes or not args:
        return False
    if "dtype" in kwargs:
        return kwargs["dtype"] is not getattr(args[0], "dtype", None)
    if operation.functional in HELD:
        return not HELD[operation.functional](args[0].dtype)
    if not operation.promotes and not ops.named(operation.functional).promotes:
        return False
    if each == name or not isinstance(args[0], (list, tuple)):
        return _is_narrowed(args)
    columns = [arg if isinstance(arg, (list, tuple)) else [arg] * len(args[0]) for arg in args]
    return any(map(_is_narrowed, zip(*columns, strict=False)))


def gives_another_dtype(run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``out`` is not of the dtype that comes out without it: some kernels convert, others refuse that."""
    if not isinstance(kwargs.get("out"), (Fake, tuple, list)):
        return False
    try:
        result = fakes.run(run, args, {name: value for name, value in kwargs.items() if name != "out"})
    except (FakeFailure, Unsupported):
        return True
    return _dtypes(result) != _dtypes(kwargs["out"])


def _dtypes(value: Any) -> list[Any]:
    parts = value if isinstance(value, (tuple, list)) else [value]
    return [getattr(part, "dtype", None) for part in parts]


def _is_narrowed(operands: Sequence[Any]) -> bool:
    tensors = [one.outline() if isinstance(one, Fake) else one for one in operands]
    if not isinstance(tensors[0], torch.Tensor):
        return False
    known = [one for one in tensors if isinstance(one, (torch.Tensor, *NUMBERS))]
    try:
        return not fits_into(common_dtype(known), tensors[0].dtype)
    except NotThin:  # promoted by rules of its own
        return True
