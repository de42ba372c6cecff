"""Operations whose kernels refuse dtypes beside each other that PyTorch's rules for shapes let through.

Such a node runs as it was captured, so that ATen itself decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothways import ops, torch_compat
from bothways.capture.shapes.fakes import Fake


def may_be_refused(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether tensors that have to be of one dtype are of several; autocast makes them alike."""
    places = ops.named(name).of_one_dtype
    if not places or torch_compat.is_any_autocast_enabled():
        return False
    operands = [*(args[place] for place in places if place < len(args)), kwargs.get("weight")]
    return len({operand.dtype for operand in operands if isinstance(operand, Fake)}) > 1
