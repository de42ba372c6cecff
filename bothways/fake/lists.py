"""Operations on lists of tensors as ATen's kernels for GPUs do them: all of a list at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways import ops
from bothways.fake.layout import is_dense, same_sizes

# Devices with a kernel for a whole list.
AT_ONCE = frozenset(["cuda"])


def leaves_versions(name: str, *lists: Sequence[Any]) -> bool:
    """Whether an operation that writes to the first list does not count that: one kernel for all of it, which forgets
    to. Where tensors differ, or lie otherwise, ATen does one after the other, and each counts."""
    if len(lists) != (ops.named(name).uncounted_at_once or None) or not lists[0]:
        return False
    first = lists[0][0]
    return (
        first.device.type in AT_ONCE
        and (first.dtype.is_floating_point or first.dtype.is_complex)
        and all(len(each) == len(lists[0]) for each in lists)
        and all(_are_alike(first, group) for group in zip(*lists, strict=True))
    )


def _are_alike(first: torch.Tensor, group: Sequence[torch.Tensor]) -> bool:
    """Whether the tensors at one place are like the first of all, and lie alike without gaps."""
    shape, stride = tuple(group[0].shape), group[0].stride()
    return is_dense(shape, stride) and all(
        (one.device, one.dtype) == (first.device, first.dtype)
        and same_sizes(tuple(one.shape), shape)
        and same_sizes(one.stride(), stride)
        for one in group
    )
