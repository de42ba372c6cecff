"""Products of matrices for symbolic sizes, made of operations that take such.

Older versions of PyTorch ask for plain numbers where C++ makes a product of matrices of its parts. There the parts
below take its place, whose results are laid out and rounded as PyTorch's are. Autocast casts what goes into a product;
of the parts it casts only some, so that the others are given what is cast.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

SIMPLE: dict[tuple[int, int], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    (1, 1): lambda one, other: torch.dot(_cast(one), _cast(other)),
    (2, 1): lambda one, other: torch.mv(_cast(one), _cast(other)),
    (1, 2): lambda one, other: one.unsqueeze(0).mm(other).squeeze(0),
    (2, 2): torch.mm,
}


def matmul(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    simple = SIMPLE.get((one.dim(), other.dim()))
    if simple is not None:
        return simple(one, other)
    if min(one.dim(), other.dim()) in (1, 2) and _is_folded(one, other):
        return _folded(one, other)
    return _batched(one, other)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if bias is not None and x.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    if bias is not None and bias.dim() == 1 and weight.dim() == 2 and x.is_contiguous():
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return torch.addmm(bias, rows, weight.t()).view(*x.shape[:-1], weight.shape[0])
    product = matmul(x, weight.t() if weight.dim() == 2 else weight)
    return product if bias is None else product + _cast(bias)


def _cast(tensor: torch.Tensor) -> torch.Tensor:
    """As autocast, where it is on, casts what goes into a product."""
    kind = tensor.device.type
    is_left = not tensor.is_floating_point() or tensor.dtype == torch.float64
    return tensor if is_left or not torch.is_autocast_enabled(kind) else tensor.to(torch.get_autocast_dtype(kind))


def _is_folded(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether PyTorch makes one matrix of the batches of the larger operand: where it can without copying, or where a
    gradient of the smaller one would be as large as all batches."""
    larger, smaller = (one, other) if one.dim() >= other.dim() else (other.mT, one)
    if smaller.requires_grad:
        return True
    if one.dim() == 2:
        return False
    shape, stride = larger.shape, larger.stride()
    if any(size == 0 for size in shape):
        return True
    return all(stride[at] == stride[at + 1] * shape[at + 1] for at in range(larger.dim() - 2))


def _folded(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if one.dim() >= other.dim():
        return _times_small(one, other)
    product = _times_small(other.mT, one.t() if one.dim() == 2 else one)
    return product.mT.contiguous() if one.dim() == 2 else product


def _times_small(larger: torch.Tensor, smaller: torch.Tensor) -> torch.Tensor:
    batches = larger.shape[:-1]
    rows = larger.reshape(math.prod(batches), larger.shape[-1])
    product = SIMPLE[2, smaller.dim()](rows, smaller)
    return product.view(*batches, *smaller.shape[1:])


def _batched(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    left = one.unsqueeze(0) if one.dim() == 1 else one
    right = other.unsqueeze(1) if other.dim() == 1 else other
    batches = _broadcast(left.shape[:-2], right.shape[:-2])
    count = math.prod(batches)
    product = torch.bmm(
        left.expand(*batches, *left.shape[-2:]).reshape(count, *left.shape[-2:]),
        right.expand(*batches, *right.shape[-2:]).reshape(count, *right.shape[-2:]),
    ).view(*batches, left.shape[-2], right.shape[-1])
    if one.dim() == 1:
        return product.squeeze(-2)
    return product.squeeze(-1) if other.dim() == 1 else product


def _broadcast(left: torch.Size, right: torch.Size) -> list[int]:
    rank = max(len(left), len(right))
    padded = zip((1,) * (rank - len(left)) + tuple(left), (1,) * (rank - len(right)) + tuple(right), strict=True)
    return [theirs if own == 1 else own for own, theirs in padded]


# By the functions and methods that are products in captured graphs.
PRODUCTS: dict[Any, Callable[..., torch.Tensor]] = {
    operator.matmul: matmul,
    torch.matmul: matmul,
    torch.Tensor.matmul: matmul,
    torch.linalg.matmul: matmul,
    "matmul": matmul,
    F.linear: linear,
}
