"""What autograd knows of views: how one is taken again, and which it refuses to have changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._C as _C

CONJUGATED = torch.ops.aten._conj.default  # the same numbers, seen as conjugated


def view_again(
    view: torch.Tensor, base: torch.Tensor, size: Callable[[Any], int] | None = None
) -> torch.Tensor:
    """The same view of another base, by the same operations; it must have been taken inside of ``tracing``.

    ``size`` gives the numbers that symbolic sizes stand for now.
    """
    return view._view_func_unsafe(base) if size is None else view._view_func_unsafe(base, size)


def refuses_changes(view: torch.Tensor) -> bool:
    """Whether autograd refuses every change of a view: it is one of several, or was taken without gradients."""
    return bool(_C._autograd._get_creation_meta(view) != _C._autograd.CreationMeta.DEFAULT)


def stays_usable(tensor: torch.Tensor) -> bool:
    """Whether autograd takes a tensor also when its memory was written to; some views it refuses from then on."""
    return not tensor._is_view() or not refuses_changes(tensor)


def was_taken_without_grad(view: torch.Tensor) -> bool:
    return bool(_C._autograd._get_creation_meta(view) == _C._autograd.CreationMeta.NO_GRAD_MODE)


def leads_nowhere(tensor: torch.Tensor) -> bool:
    """Whether a tensor says that it needs a gradient because it is a view of one that does, and was taken without
    gradients: none comes to it."""
    return tensor._is_view() and tensor.requires_grad and tensor.is_leaf and _base(tensor).requires_grad


def _base(view: torch.Tensor) -> torch.Tensor:
    assert view._base is not None
    return view._base
