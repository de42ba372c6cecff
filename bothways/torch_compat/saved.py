"""Tensors that an autograd node has saved for its backward; whether those of a node of Python were changed since."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._C as _C

# Whether a tensor that was saved can be asked whether it is as it was; before PyTorch 2.13 the versions are kept apart.
SAVED_KNOW_VERSIONS = hasattr(_C._autograd.SavedTensor, "unpack")


def has_saved_tensors(node: Any) -> bool:
    """Whether an autograd node keeps a tensor for its backward."""
    kind: Any = type(node)
    for name in _saved_names(kind):
        try:
            # What a checkpoint, or a hook, has in the place of a tensor is not asked for it: it may compute all again.
            if _is_kept_by_hooks(getattr(node, f"_raw{name}" if name.startswith("_") else f"_raw_{name}")):
                return True
            saved = getattr(node, name)
        except RuntimeError:  # it was changed since
            return True
        if saved is not None and saved != ():
            return True
    return False


def _is_kept_by_hooks(raw: Any) -> bool:
    return any(one.unpack_hook is not None for one in (raw if isinstance(raw, tuple) else (raw,)))


def saved_tensors_of(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that an autograd node keeps for its backward, with the history they have."""
    kind: Any = type(node)
    for name in _saved_names(kind):
        saved = getattr(node, name)
        yield from (one for one in (saved if isinstance(saved, tuple) else (saved,)) if isinstance(one, torch.Tensor))


@functools.cache
def _saved_names(kind: Any) -> tuple[str, ...]:
    names = [name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_")]
    return tuple("saved_tensors" if name == "_saved_tensors" else name for name in names)


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
