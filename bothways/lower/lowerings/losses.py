"""Losses and their backwards, as ATen's kernels compute them."""

from __future__ import annotations

from typing import Any

import torch

from bothways.lower.builder import Builder
from bothways.lower.lowerings.registry import aten, lowers
from bothways.lower.lowerings.term import Term, both, compared, negated, terms, wide
from bothways.lower.prims import Node

NONE, MEAN, SUM = 0, 1, 2


def _finished(b: Builder, out: torch.Tensor, loss: Term, reduction: int) -> Node:
    """One loss for each element, or their mean or sum."""
    if reduction == NONE:
        return loss.as_(out.dtype)
    axes = range(len(loss.node.shape))
    whole = loss.mean(axes) if reduction == MEAN else loss.sum(axes)
    return b.reshape(whole.as_(out.dtype), ())


def _share(x: Node, reduction: int) -> float:
    """What one element counts for in the result."""
    return 1 / x.numel if reduction == MEAN else 1.0


@lowers(aten.mse_loss.default)
def _mse(b: Builder, out: torch.Tensor, x: Node, target: Node, reduction: int = MEAN) -> Node:
    t, u = terms(b, out.dtype, x, target)
    return _finished(b, out, (t - u) * (t - u), reduction)


@lowers(aten.mse_loss_backward.default)
def _mse_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, reduction: int) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    return (2 * _share(x, reduction) * (t - u) * g).as_(out.dtype)


@lowers(aten.smooth_l1_loss.default)
def _smooth_l1(
    b: Builder, out: torch.Tensor, x: Node, target: Node, reduction: int = MEAN, beta: float = 1.0
) -> Node:
    t, u = terms(b, out.dtype, x, target)
    distance = (t - u).abs()
    if beta == 0:
        return _finished(b, out, distance, reduction)
    loss = (0.5 * distance * distance / beta).where(distance < beta, distance - 0.5 * beta)
    return _finished(b, out, loss, reduction)


@lowers(aten.smooth_l1_loss_backward.default)
def _smooth_l1_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, reduction: int, beta: float
) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    distance, unit = t - u, _share(x, reduction) * g
    outside = (-unit).where(distance <= -beta, unit)
    if beta == 0:
        return outside.where(b.map("ne", distance.node, 0, dtype=torch.bool, of=t.dtype), unit).as_(out.dtype)
    return (unit * distance / beta).where(distance.abs() < beta, outside).as_(out.dtype)


@lowers(aten.huber_loss.default)
def _huber(b: Builder, out: torch.Tensor, x: Node, target: Node, reduction: int = MEAN, delta: float = 1.0) -> Node:
    t, u = terms(b, out.dtype, x, target)
    distance = (t - u).abs()
    loss = (0.5 * distance * distance).where(distance <= delta, delta * (distance - 0.5 * delta))
    return _finished(b, out, loss, reduction)


@lowers(aten.huber_loss_backward.default)
def _huber_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, reduction: int, delta: float
) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    distance, unit = t - u, _share(x, reduction) * g
    outside = (unit * -delta).where(distance < 0, unit * delta)
    return (unit * distance).where(distance.abs() <= delta, outside).as_(out.dtype)


@lowers(aten.soft_margin_loss.default)
def _soft_margin(b: Builder, out: torch.Tensor, x: Node, target: Node, reduction: int = MEAN) -> Node:
    t, u = terms(b, out.dtype, x, target)
    return _finished(b, out, (-u * t).exp().log1p(), reduction)


@lowers(aten.soft_margin_loss_backward.default)
def _soft_margin_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, reduction: int) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    z = (-u * t).exp()
    return (-u * z / (1 + z) * g * _share(x, reduction)).as_(out.dtype)


# Binary cross entropy ---------------------------------------------------------------------------------------------


def raise_probability_error(bad: torch.Tensor) -> None:
    if bad:
        raise RuntimeError("all elements of input should be between 0 and 1")


@lowers(aten.binary_cross_entropy.default)
def _bce(
    b: Builder, out: torch.Tensor, x: Node, target: Node, weight: Node | None = None, reduction: int = MEAN
) -> Node:
    t, u = terms(b, out.dtype, x, target)
    b.check(negated(b, both(b, t >= 0, t <= 1)), raise_probability_error)
    # Logarithms end at -100, so that a target of zero makes a loss of zero.
    loss = (u - 1) * (-t).log1p().maximum(-100) - u * t.log().maximum(-100)
    return _finished(b, out, loss if weight is None else loss * Term(b, weight, t.dtype), reduction)


@lowers(aten.binary_cross_entropy_backward.default)
def _bce_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, weight: Node | None = None, reduction: int = MEAN
) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    found = g * (t - u) / ((1 - t) * t).maximum(1e-12)
    if weight is not None:
        found = found * Term(b, weight, t.dtype)
    return (found / x.numel if reduction == MEAN else found).as_(out.dtype)


@lowers(aten.binary_cross_entropy_with_logits.default)
def _bce_with_logits(
    b: Builder, out: torch.Tensor, x: Node, target: Node, weight: Node | None = None, pos_weight: Node | None = None,
    reduction: int = MEAN,
) -> Node:  # fmt: skip
    t, u = terms(b, out.dtype, x, target)
    log_sigmoid = t.minimum(0) - (-t.abs()).exp().log1p()
    if pos_weight is not None:
        log_sigmoid = log_sigmoid * ((Term(b, pos_weight, t.dtype) - 1) * u + 1)
    loss = (1 - u) * t - log_sigmoid
    return _finished(b, out, loss if weight is None else loss * Term(b, weight, t.dtype), reduction)


# Negative log likelihood: the class of each row, along the dimension after the batch ---------------------------


def raise_target_error(bad: torch.Tensor, target: torch.Tensor, classes: int, ignore_index: int) -> None:
    if bad:
        wrong = next(
            value for value in target.flatten().tolist() if value != ignore_index and not 0 <= value < classes
        )
        raise IndexError(f"Target {wrong} is out of bounds.")


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll(
    b: Builder, out: Any, x: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int
) -> tuple[Node, Node]:
    """The loss and what the classes weigh together. Kernels read no class that is not there."""
    dim = 1 if len(x.shape) > 1 else 0
    rows = tuple(1 if index == dim else size for index, size in enumerate(x.shape))
    classes, dtype = b.reshape(target, rows), wide(x.dtype)
    counted = compared(b, "ne", classes, ignore_index)
    inside = both(b, compared(b, "ge", classes, 0), compared(b, "lt", classes, x.shape[dim]))
    b.check(both(b, counted, negated(b, inside)), raise_target_error, target, x.shape[dim], ignore_index)
    safe = b.where(inside, classes, 0, torch.int64)
    loss = -Term(b, b.take(x, dim, safe), dtype)
    weights = Term(b, 1, dtype)
    if weight is not None:
        shape = tuple(size if index == dim else 1 for index, size in enumerate(x.shape))
        spread = b.expand(b.reshape(b.stored(weight), shape), x.shape)
        weights = Term(b, b.take(spread, dim, safe), dtype)
    weights = weights.where(counted, 0)
    loss = (loss * weights).where(counted, 0)
    if reduction == NONE:
        return b.reshape(loss.as_(out[0].dtype), tuple(out[0].shape)), b.full((), 0, out[1].dtype)
    axes = range(len(rows))
    whole, total = loss.sum(axes), weights.sum(axes)
    whole = whole / total if reduction == MEAN else whole
    return b.reshape(whole.as_(out[0].dtype), ()), b.reshape(total.as_(out[1].dtype), ())


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _nll_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, weight: Node | None, reduction: int,
    ignore_index: int, total_weight: Node,
) -> Node:  # fmt: skip
    """Zero but for the class of each row. The forward has made sure that the classes are in range."""
    dim = 1 if len(x.shape) > 1 else 0
    rows = tuple(1 if index == dim else size for index, size in enumerate(x.shape))
    classes = b.reshape(target, rows)
    counted = compared(b, "ne", classes, ignore_index)
    dtype = wide(out.dtype)
    unit = -Term(b, b.reshape(grad, rows) if reduction == NONE else grad, dtype)
    if reduction == MEAN:
        unit = unit / Term(b, total_weight, dtype)
    if weight is not None:
        shape = tuple(size if index == dim else 1 for index, size in enumerate(x.shape))
        unit = unit * Term(b, b.reshape(weight, shape), dtype)
    # In the smallest integers, of which most fit a vector; -1 is no class.
    small = torch.int32 if x.shape[dim] < 2**31 else torch.int64
    place = b.cast(b.where(counted, classes, -1, torch.int64), small)
    here = b.map("eq", b.cast(b.position(x.shape, dim), small), place, dtype=torch.bool, of=small)
    found = unit.where(here, 0).as_(out.dtype)
    if weight is None and found.dtype == dtype:
        b.known_sums[found, (dim,)] = b.expand(unit.where(counted, 0).node, rows)
    return found

