"""Losses, and the gradients of those that have kernels of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bothways.fake.layout import contiguous, dense_like, iterated
from bothways.fake.promotion import FLOATING
from bothways.fake.rules.pointwise import nary
from bothways.fake.tensor import NotThin, Spec, ThinTensor

Rule = Callable[..., Any]


def _new(shape: tuple[int, ...], dtype: torch.dtype) -> Spec:
    return Spec(shape, contiguous(shape), dtype)


def _pointwise(**options: Any) -> Rule:
    """A loss of an input and a target; the argument after them says whether a scalar comes out, as by default."""
    pointwise = nary((0, 1), FLOATING, **options)

    def rule(one: ThinTensor, other: ThinTensor, reduction: int = 1, *parameters: Any) -> Spec:
        spec: Spec = pointwise(one, other)
        return _new((), spec.dtype) if reduction else spec

    return rule


def _check_alike(*tensors: ThinTensor | None) -> None:
    first = tensors[0]
    assert first is not None
    if first.dtype not in FLOATING:
        raise NotThin(f"a loss of {first.dtype}")
    for tensor in tensors[1:]:
        if tensor is not None and (tensor.shape != first.shape or tensor.dtype is not first.dtype):
            raise NotThin("targets that do not fit")


def _cross_entropy_of_two(
    scores: ThinTensor, target: ThinTensor, weight: ThinTensor | None = None, reduction: int = 1
) -> Spec:
    _check_alike(scores, target, weight)
    shape = tuple(scores.shape)
    return _new((), scores.dtype) if reduction else Spec(shape, dense_like(shape, scores.stride()), scores.dtype)


def _cross_entropy_of_two_backward(
    grad: ThinTensor,
    scores: ThinTensor,
    target: ThinTensor,
    weight: ThinTensor | None = None,
    reduction: int = 1,
) -> Spec:
    _check_alike(scores, target, weight)
    if grad.dtype is not scores.dtype:
        raise NotThin("a gradient of another dtype")
    shape = tuple(scores.shape)
    return Spec(shape, dense_like(shape, scores.stride()), scores.dtype)


def _cross_entropy_of_logits(
    scores: ThinTensor,
    target: ThinTensor,
    weight: ThinTensor | None = None,
    pos_weight: ThinTensor | None = None,
    reduction: int = 1,
) -> Spec:
    _check_alike(scores, target)
    factors = [one for one in (weight, pos_weight) if one is not None]
    if any(one.dtype is not scores.dtype for one in factors) or (factors and not reduction):
        raise NotThin("weights that change the layout")
    if any(tuple(one.shape) not in ((), tuple(scores.shape[-1:]), tuple(scores.shape)) for one in factors):
        raise NotThin("weights that do not fit")
    if reduction:
        return _new((), scores.dtype)
    return Spec(*iterated(((), tuple(target.shape)), ((), target.stride())), scores.dtype)


def _backward(grad: ThinTensor, scores: ThinTensor, target: ThinTensor, *parameters: Any) -> Spec:
    """The gradient of a pointwise loss is contiguous whatever the input is."""
    _check_alike(scores, target)
    if grad.dtype is not scores.dtype or (grad.dim() and grad.shape != scores.shape):
        raise NotThin("a gradient that does not fit")
    return _new(tuple(scores.shape), scores.dtype)


def _classes(
    scores: ThinTensor, target: ThinTensor, weight: ThinTensor | None, reduction: int, ignore_index: int
) -> tuple[Spec, Spec]:
    shape, rank = tuple(target.shape), scores.dim()
    if target.dtype is not torch.int64 or scores.dtype not in FLOATING or not rank:
        raise NotThin("targets that are not classes")
    if (scores.shape[0], *scores.shape[2:]) != shape and not (rank == 1 and not shape):
        raise NotThin("targets that do not fit")
    classes = scores.shape[min(1, rank - 1)]
    if weight is not None and (tuple(weight.shape) != (classes,) or weight.dtype is not scores.dtype):
        raise NotThin("weights that do not fit")
    scalar = _new((), scores.dtype)
    return (scalar if reduction else _new(shape, scores.dtype)), scalar


def _classes_backward(grad: ThinTensor, scores: ThinTensor, target: ThinTensor, *parameters: Any) -> Spec:
    if grad.dtype is not scores.dtype or (scores.dim() == 4 and not scores.is_contiguous()):
        raise NotThin("a gradient of another dtype, or a layout that is refused")
    return _new(tuple(scores.shape), scores.dtype)


RULES: dict[str, Rule] = {
    "mse_loss": _pointwise(),
    "smooth_l1_loss": _pointwise(),
    "huber_loss": _pointwise(one_dtype=True),
    "mse_loss_backward": _backward,
    "smooth_l1_loss_backward": _backward,
    "huber_loss_backward": _backward,
    "binary_cross_entropy": _cross_entropy_of_two,
    "binary_cross_entropy_backward": _cross_entropy_of_two_backward,
    "binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    "nll_loss_forward": _classes,
    "nll_loss2d_forward": _classes,
    "nll_loss_backward": _classes_backward,
    "nll_loss2d_backward": _classes_backward,
    "multi_margin_loss_backward": _classes_backward,
}
