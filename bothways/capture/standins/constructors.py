"""Tensors made by their old-fashioned types, ``torch.FloatTensor([1, 2])``, said with functions."""

from __future__ import annotations

from typing import Any

import torch


def of_numbers(data: Any, dtype: torch.dtype | None, device: str) -> torch.Tensor:
    return torch.tensor(data, dtype=torch.get_default_dtype() if dtype is None else dtype, device=device)


def of_array(
    content: torch.Tensor, dtype: torch.dtype | None = None, device: Any = None, requires_grad: bool = False
) -> torch.Tensor:
    """``torch.tensor`` of an array, whose content is in a tensor."""
    own = content.clone().to(device=device, dtype=content.dtype if dtype is None else dtype)
    return own.requires_grad_() if requires_grad else own


def of_sizes(sizes: tuple[int, ...], dtype: torch.dtype | None, device: str) -> torch.Tensor:
    return torch.empty(sizes, dtype=torch.get_default_dtype() if dtype is None else dtype, device=device)


def of_changing_numbers(data: Any, has_floats: bool, dtype: torch.dtype | None, device: Any) -> torch.Tensor:
    """``torch.tensor`` of numbers and lists of them, some of which are symbols."""
    if dtype is None:
        dtype = torch.get_default_dtype() if has_floats else torch.int64
    return _filled(data, dtype, device)


def _filled(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(data, (list, tuple)):
        return torch.stack([_filled(item, dtype, device) for item in data])
    return torch.full((), data, dtype=dtype, device=device)
