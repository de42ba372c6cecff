"""Wrappers on which in-place operations become functional ones: PyTorch's functionalization, as tracing uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._C as _C


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """A wrapper on which in-place operations become functional ones."""
    wrapped: torch.Tensor = torch._to_functional_tensor(tensor)
    _C._set_throw_on_mutable_data_ptr(wrapped)
    return wrapped


def is_functional(tensor: torch.Tensor) -> bool:
    return torch._is_functional_tensor(tensor)


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The current value behind a functional wrapper."""
    if not is_functional(tensor):
        return tensor
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


def replace_functional(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Have a functional wrapper, and what it is a view of, stand for another value. That is not counted as a change."""
    torch._functionalize_replace(tensor, from_functional(value))
    torch._functionalize_commit_update(tensor)
    torch._functionalize_sync(tensor)


# Functionalization also runs every in-place operation on meta tensors, to find sizes that do not fit, unless this is
# set when the first one is met. Those kernels are Python: 0.3 ms an operation, and they load sympy.
_WITHOUT_META_CHECKS = "TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE"


@cache
def _zeros_with_memory() -> torch.library.Library:
    """Have formulas of autograd that give zeros without memory (``sgn``'s) give ordinary ones to functionalization.

    Products of zeros without memory are such zeros again, and not wrapped; views of those end the interpreter.
    """

    def zeros(size: Any, *, pin_memory: bool | None = None, **options: Any) -> torch.Tensor:
        return torch.zeros(size, **options)

    library = torch.library.Library("aten", "IMPL")
    library.impl("_efficientzerotensor", zeros, "Functionalize")
    return library


@contextmanager
def functionalized() -> Iterator[None]:
    """In-place operations on wrapped tensors become functional ones; their sizes have to be known to fit."""
    _zeros_with_memory()
    unset = _WITHOUT_META_CHECKS not in os.environ
    if unset:
        os.environ[_WITHOUT_META_CHECKS] = "1"
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()
        if unset:
            os.environ.pop(_WITHOUT_META_CHECKS, None)
