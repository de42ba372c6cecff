"""Operations whose kernels refuse dtypes beside each other that PyTorch's rules for shapes let through.

Such a node runs as it was captured, so that ATen itself decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.capture.shapes.fakes import Fake
from bothways.ops import Fails

HALF = (torch.bfloat16, torch.float16)


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


def may_be_refused(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether tensors that have to be of one dtype are of several; autocast makes them alike."""
    operation = ops.named(name)
    fails = ops.named(operation.functional).fails if operation.functional else operation.fails
    if fails is Fails.UNLESS_LISTS_FIT:
        return not lists_fit(args)
    if torch_compat.is_any_autocast_enabled():
        return False
    if fails is Fails.UNLESS_PARAMETERS_FIT:
        operands = [operand for operand in (*args, *kwargs.values()) if isinstance(operand, Fake)]
        return not parameters_fit([operand.dtype for operand in operands])
    places = operation.of_one_dtype
    if not places:
        return False
    named: list[Any] = [*(args[place] for place in places if place < len(args)), kwargs.get("weight")]
    return len({operand.dtype for operand in named if isinstance(operand, Fake)}) > 1
