"""Tensors made by their old-fashioned types, ``torch.FloatTensor([1, 2])``, said with functions."""

from __future__ import annotations

from typing import Any

import torch


def of_numbers(data: Any, dtype: torch.dtype | None) -> torch.Tensor:
    return torch.tensor(data, dtype=torch.get_default_dtype() if dtype is None else dtype, device="cpu")


def of_sizes(sizes: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
    return torch.empty(sizes, dtype=torch.get_default_dtype() if dtype is None else dtype, device="cpu")
