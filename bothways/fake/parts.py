"""Operations that PyTorch makes of others in C++, made here of such as take symbolic sizes.

Where C++ asks for plain numbers, each new size would be another program. The results are laid out as PyTorch's are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from bothways import torch_compat
from bothways.fake.products import PRODUCTS


def padded_alike(
    sequences: Sequence[torch.Tensor], batch_first: bool = False, padding_value: float = 0, padding_side: str = "right"
) -> torch.Tensor:
    """``pad_sequence``: which one is the longest is not asked."""
    longest = sequences[0].shape[0]
    for sequence in sequences[1:]:
        longest = torch.sym_max(longest, sequence.shape[0])
    padded = []
    for sequence in sequences:
        missing = longest - sequence.shape[0]
        ends = {"left": [missing, 0], "right": [0, missing]}[padding_side]
        padded.append(F.pad(sequence, [0, 0] * (sequence.dim() - 1) + ends, value=padding_value))
    return torch.stack(padded, 0 if batch_first else 1)


def _are_ragged(sequences: Any = (), *options: Any) -> bool:
    """Whether tensors differ in their first sizes at most, some of which change. Of others C++ says what it thinks."""
    if len(options) == 3 and options[2] not in ("left", "right"):
        return False
    if not (isinstance(sequences, (list, tuple)) and any(map(_is_symbolic, sequences))):
        return False
    if not all(isinstance(one, torch.Tensor) for one in sequences):
        return False
    kinds = {(one.dim(), one.dtype, one.device, one.layout) for one in sequences}
    return len(kinds) == 1 and bool(sequences[0].dim()) and all(
        one.shape[1:] == sequences[0].shape[1:] for one in sequences
    )


def _is_product(*args: Any) -> bool:
    return not torch_compat.PRODUCTS_TAKE_SYMBOLS and any(map(_is_symbolic, args))


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


# By what is called in captured graphs: when it is made of parts, and how.
PARTS: dict[Any, tuple[Callable[..., bool], Callable[..., torch.Tensor]]] = {
    **{target: (_is_product, made) for target, made in PRODUCTS.items()},
    torch_compat.NN_FUNCTIONS.pad_sequence: (_are_ragged, padded_alike),
}


def of_parts(target: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """What computes an operation on tensors with symbolic sizes, where PyTorch would not."""
    known = PARTS.get(target) if isinstance(target, Hashable) else None
    return known[1] if known is not None and known[0](*args) else None
