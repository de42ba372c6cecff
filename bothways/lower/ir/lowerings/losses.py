"""Losses and their backwards, as ATen's kernels compute them."""

from __future__ import annotations

import struct
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers_floating
from bothways.lower.ir.lowerings.term import Term, both, compared, negated, number_as, terms, wide
from bothways.lower.ir.prims import Node

NONE, MEAN, SUM = 0, 1, 2
SMALLEST = struct.unpack("f", struct.pack("f", 1e-12))[0]  # in single precision for every dtype, as ATen has it


def _finished(b: Builder, out: torch.Tensor, loss: Term, reduction: int) -> Node:
    """One loss for each element, or their mean or sum."""
    if reduction == NONE:
        return loss.as_(out.dtype)
    axes = range(len(loss.node.shape))
    loss = loss.stored(out.dtype)
    whole = loss.mean(axes) if reduction == MEAN else loss.sum(axes)
    return b.reshape(whole.as_(out.dtype), ())


def _share(x: Node, reduction: int) -> float:
    """What one element counts for in the result."""
    return 1 / x.numel if reduction == MEAN else 1.0


@lowers_floating(aten.mse_loss.default)
def _mse(b: Builder, out: torch.Tensor, x: Node, target: Node, reduction: int = MEAN) -> Node:
    t, u = terms(b, out.dtype, x, target)
    distance = (t - u).stored(out.dtype)
    return _finished(b, out, distance * distance, reduction)


@lowers_floating(aten.mse_loss_backward.default)
def _mse_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, reduction: int) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    unit = number_as(out.dtype, 2 * _share(x, reduction))
    return ((unit * (t - u).stored(out.dtype)).stored(out.dtype) * g).as_(out.dtype)


@lowers_floating(aten.smooth_l1_loss.default)
def _smooth_l1(
    b: Builder, out: torch.Tensor, x: Node, target: Node, reduction: int = MEAN, beta: float = 1.0
) -> Node:
    t, u = terms(b, out.dtype, x, target)
    distance = (t - u).abs()
    if beta == 0:
        return _finished(b, out, distance, reduction)
    if out.dtype == torch.float16:
        beta, half = number_as(out.dtype, beta), number_as(out.dtype, 0.5 * number_as(out.dtype, beta))
        distance = distance.stored(out.dtype)
        inside = (0.5 * distance * distance).stored(out.dtype) / beta
        return _finished(b, out, inside.where(distance < beta, distance - half), reduction)
    loss = (0.5 * distance * distance / beta).where(distance < beta, distance - 0.5 * beta)
    return _finished(b, out, loss, reduction)


@lowers_floating(aten.smooth_l1_loss_backward.default)
def _smooth_l1_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, reduction: int, beta: float
) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    distance, unit = t - u, _share(x, reduction) * g
    inside = unit * distance / beta if beta else unit * distance
    return (-unit).where(distance <= -beta, unit.where(distance >= beta, inside)).as_(out.dtype)


@lowers_floating(aten.huber_loss.default)
def _huber(b: Builder, out: torch.Tensor, x: Node, target: Node, reduction: int = MEAN, delta: float = 1.0) -> Node:
    t, u = terms(b, out.dtype, x, target)
    distance = (t - u).abs()
    if out.dtype == torch.bfloat16:
        distance, delta = distance.stored(out.dtype), number_as(out.dtype, delta)
        outside = delta * (distance - number_as(out.dtype, 0.5 * delta)).stored(out.dtype)
        return _finished(b, out, (0.5 * distance * distance).where(distance <= delta, outside), reduction)
    loss = (0.5 * distance * distance).where(distance <= delta, delta * (distance - 0.5 * delta))
    return _finished(b, out, loss, reduction)


@lowers_floating(aten.huber_loss_backward.default)
def _huber_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, reduction: int, delta: float
) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    delta, share = number_as(out.dtype, delta), number_as(out.dtype, _share(x, reduction))
    distance, unit = (t - u).stored(out.dtype), (share * g).stored(out.dtype)
    above = (unit * delta).where(distance >= delta, (share * distance).stored(out.dtype) * g)
    return (unit * -delta).where(distance <= -delta, above).as_(out.dtype)


@lowers_floating(aten.soft_margin_loss.default)
def _soft_margin(b: Builder, out: torch.Tensor, x: Node, target: Node, reduction: int = MEAN) -> Node:
    t, u = terms(b, out.dtype, x, target)
    power = ((-u * t).stored(out.dtype)).exp().stored(out.dtype)
    return _finished(b, out, power.log1p(), reduction)


@lowers_floating(aten.soft_margin_loss_backward.default)
def _soft_margin_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, reduction: int) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    z = ((-u * t).stored(out.dtype)).exp().stored(out.dtype)
    slope = ((u * z).stored(out.dtype) * -_share(x, reduction)).stored(out.dtype)
    return ((slope / (z + 1).stored(out.dtype)).stored(out.dtype) * g).as_(out.dtype)


# Binary cross entropy ---------------------------------------------------------------------------------------------


def raise_probability_error(bad: torch.Tensor) -> None:
    if bad:
        raise RuntimeError("all elements of input and target should be between 0 and 1")


def _is_share(b: Builder, value: Term) -> Node:
    return both(b, value >= 0, value <= 1)


@lowers_floating(aten.binary_cross_entropy.default)
def _bce(
    b: Builder, out: torch.Tensor, x: Node, target: Node, weight: Node | None = None, reduction: int = MEAN
) -> Node:
    if b.on_gpu:
        raise NotLowered  # eager's own assertion names what is wrong
    t, u = terms(b, out.dtype, x, target)
    b.check(negated(b, both(b, _is_share(b, t), _is_share(b, u))), raise_probability_error)
    # Logarithms end at -100, so that a target of zero makes a loss of zero.
    of_one, of_zero = (t.log().stored(out.dtype).maximum(-100), (-t).log1p().stored(out.dtype).maximum(-100))
    loss = ((u - 1).stored(out.dtype) * of_zero).stored(out.dtype) - (u * of_one).stored(out.dtype)
    return _finished(b, out, loss if weight is None else loss * Term(b, weight, t.dtype), reduction)


@lowers_floating(aten.binary_cross_entropy_backward.default)
def _bce_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, target: Node, weight: Node | None = None, reduction: int = MEAN
) -> Node:
    g, t, u = terms(b, out.dtype, grad, x, target)
    below = ((1 - t).stored(out.dtype) * t).stored(out.dtype)
    below = below.apply("clamp_min", number_as(out.dtype, SMALLEST))
    gradient = (g * (t - u).stored(out.dtype)).stored(out.dtype) / below
    if weight is not None:
        gradient = gradient * Term(b, weight, t.dtype)
    return (gradient / x.numel if reduction == MEAN else gradient).as_(out.dtype)


@lowers_floating(aten.binary_cross_entropy_with_logits.default)
def _bce_with_logits(
    b: Builder, out: torch.Tensor, x: Node, target: Node, weight: Node | None = None, pos_weight: Node | None = None,
    reduction: int = MEAN,
) -> Node:  # fmt: skip
    t, u = terms(b, out.dtype, x, target)
    log_sigmoid = (t.minimum(0) - (-t.abs()).exp().log1p()).stored(out.dtype)
    if pos_weight is not None:
        more = ((Term(b, pos_weight, t.dtype) - 1).stored(out.dtype) * u).stored(out.dtype)
        log_sigmoid = (log_sigmoid * (more + 1).stored(out.dtype)).stored(out.dtype)
    loss = (((1 - u).stored(out.dtype) * t).stored(out.dtype) - log_sigmoid).stored(out.dtype)
    return _finished(b, out, loss if weight is None else loss * Term(b, weight, t.dtype), reduction)


# Negative log likelihood: the class of each row, along the dimension after the batch ---------------------------


def raise_target_error(bad: torch.Tensor, target: torch.Tensor, classes: int, ignore_index: int) -> None:
    if bad:
        wrong = next(
            value for value in target.flatten().tolist() if value != ignore_index and not 0 <= value < classes
        )
        raise IndexError(f"Target {wrong} is out of bounds.")


@lowers_floating(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll(
    b: Builder, out: Any, x: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int
) -> tuple[Node, Node]:
    """The loss and what the classes weigh together. Kernels read no class that is not there."""
    dim = 1 if len(x.shape) > 1 else 0
    rows = tuple(1 if index == dim else size for index, size in enumerate(x.shape))
    classes, dtype = b.reshape(target, rows), wide(x.dtype)
    counted = compared(b, "ne", classes, ignore_index)
    inside = both(b, compared(b, "ge", classes, 0), compared(b, "lt", classes, x.shape[dim]))
    if b.on_gpu:
        safe = b.within(b.where(counted, classes, 0, torch.int64), x.shape[dim])
    else:
        b.check(both(b, counted, negated(b, inside)), raise_target_error, target, x.shape[dim], ignore_index)
        safe = b.where(inside, classes, 0, torch.int64)
    loss = -Term(b, b.take(x, dim, safe), dtype)
    weights = Term(b, 1, dtype)
    if weight is not None:
        shape = tuple(size if index == dim else 1 for index, size in enumerate(x.shape))
        spread = b.expand(b.reshape(b.stored(weight), shape), x.shape)
        weights = Term(b, b.take(spread, dim, safe), dtype)
    weights = weights.where(counted, 0)
    loss = loss * weights
    if b.on_gpu and reduction != NONE and len(x.shape) > 1:  # the kernel that has the row computes it
        loss = Term(b, b.stored(loss.node), dtype)
    loss = loss.where(counted, 0)
    if reduction == NONE:
        return b.reshape(loss.as_(out[0].dtype), tuple(out[0].shape)), b.full((), 0, out[1].dtype)
    axes = range(len(rows))
    whole, total = loss.sum(axes), weights.sum(axes)
    whole = whole / total if reduction == MEAN else whole
    return b.reshape(whole.as_(out[0].dtype), ()), b.reshape(total.as_(out[1].dtype), ())


@lowers_floating(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
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
    # Rounded before it is chosen: that is once for a row, where there is one number for all of its elements.
    share = b.rounded(unit.as_(out.dtype))
    gradient = b.where(here, share, 0, out.dtype)
    if weight is None:  # a number and zeros
        b.known_sums[gradient, (dim,)] = b.expand(b.where(counted, share, 0, out.dtype), rows)
    return gradient

