"""Tensors that a node of Python has saved for its backward, and whether they were changed since."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._C as _C

# Whether a tensor that was saved can be asked whether it is as it was; before PyTorch 2.13 the versions are kept apart.
SAVED_KNOW_VERSIONS = hasattr(_C._autograd.SavedTensor, "unpack")


def unchecked_saved_tensors(
    context: Any, versions: Sequence[int]
) -> list[tuple[torch.Tensor, Callable[[], bool]]] | None:
    """The tensors that a node of Python has saved, changed or not, each with what tells whether it is as it was: by
    ``versions`` where PyTorch does not know, which says no of the node's own results. None where they are gone."""
    try:
        saved = [(one, one.data) for one in context._raw_saved_tensors]
    except (AttributeError, RuntimeError):
        return None
    if SAVED_KNOW_VERSIONS:
        return [(value, functools.partial(_unpacks, one)) for one, value in saved]
    if len(versions) != len(saved):
        return None
    return [(value, functools.partial(_is_at, value, at)) for (_, value), at in zip(saved, versions, strict=True)]


def check_not_freed(node: Any) -> None:
    """Raise, as autograd does, where a backward has freed what a node of Python saved. No hook unpacks anything."""
    node._raw_saved_tensors  # noqa: B018


def _unpacks(saved: Any) -> bool:
    try:
        saved.unpack()
    except RuntimeError:
        return False
    return True


def _is_at(value: torch.Tensor, version: int) -> bool:
    return value._version == version
