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


def may_be_refused(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether tensors that have to be of one dtype are of several; autocast makes them alike."""
    operation = ops.named(name)
    places = operation.of_one_dtype
    if operation.fails is Fails.UNLESS_PARAMETERS_FIT and not torch_compat.is_any_autocast_enabled():
        operands = [operand for operand in (*args, *kwargs.values()) if isinstance(operand, Fake)]
        return not parameters_fit([operand.dtype for operand in operands])
    if not places or torch_compat.is_any_autocast_enabled():
        return False
    operands = [*(args[place] for place in places if place < len(args)), kwargs.get("weight")]
    return len({operand.dtype for operand in operands if isinstance(operand, Fake)}) > 1
