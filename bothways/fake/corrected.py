"""PyTorch's own fake tensors, with results that lie as its kernels lay them out.

What thin tensors do not know is asked of them, and then everything else of the same trace is. Some of their formulas
are made of other operations than the kernels, and so forget which operand decides the strides; the rules know.
"""

from __future__ import annotations

from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.fake.mode import answer
from bothways.fake.rules import rule_for
from bothways.fake.tensor import NotThin, ThinTensor, thin_outline


def fake_tensor_mode(*, allow_real: bool = False) -> Any:
    """PyTorch's mode for operations that thin tensors cannot answer."""
    return torch_compat.fake_tensor_mode(allow_real=allow_real, corrected=_corrected)


def _corrected(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The fake tensors that an operation gives, with the strides of the rule for it, where there is one."""
    if torch_compat.schema_of(func) is None or not _gives_new(result):
        return result
    if ops.of(func).aliases or rule_for(func) is None:
        return result
    try:
        with torch_compat.no_modes():
            known = answer(func, _thin(args), _thin(kwargs))
    except (NotThin, RuntimeError):  # it says which operands do not fit, and fakes were content
        return result
    if isinstance(result, torch.Tensor):
        return _laid_out(result, known)
    if type(known) not in (tuple, list) or len(known) != len(result):
        return result
    return type(result)(_laid_out(*pair) for pair in zip(result, known, strict=True))


def _gives_new(result: Any) -> bool:
    return isinstance(result, torch.Tensor) or (type(result) in (tuple, list) and len(result) > 0)


def _thin(tree: Any) -> Any:
    return torch_compat.tree_map_only(torch.Tensor, _outline, tree)


def _outline(tensor: torch.Tensor) -> ThinTensor:
    if torch_compat.has_symbolic_sizes(tensor) or not torch_compat.is_strided(tensor):
        raise NotThin("only sizes and strides that are known are compared")
    return thin_outline(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def _laid_out(fake: Any, known: Any) -> Any:
    if type(known) is not ThinTensor or not torch_compat.is_fake(fake) or not _is_alike(fake, known):
        return fake
    with fake.fake_mode:
        return fake.new_empty_strided(known.shape, known.stride())


def _is_alike(fake: torch.Tensor, known: ThinTensor) -> bool:
    """Whether they differ in their strides alone."""
    same = fake.shape == known.shape and fake.dtype is known.dtype and fake.device == known.device
    return same and fake.stride() != known.stride()
