"""Layer, group and batch normalisation and their backwards. Half precision is computed in float throughout."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.reductions import variance
from bothways.lower.ir.lowerings.registry import Lowering, aten, lowers_floating, overloads
from bothways.lower.ir.lowerings.term import Term, wide
from bothways.lower.ir.prims import Buffer, Node, Shape


def _lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    """For what ATen refuses in double precision beside others: it is asked for that."""

    def register(function: Lowering) -> Lowering:
        @functools.wraps(function)
        def lower(b: Builder, out: Any, *args: Any, **kwargs: Any) -> Any:
            dtypes = {arg.dtype for arg in args if isinstance(arg, Node)}
            if torch.float64 in dtypes and len(dtypes) > 1:
                raise NotLowered("dtypes that do not fit")
            return function(b, out, *args, **kwargs)

        return lowers_floating(*targets)(lower)

    return register


def _scaled(x: Term, weight: Node | None, bias: Node | None, shape: Shape) -> Term:
    """Times the weight, plus the bias; each has the given shape beside ``x``."""
    for op, node in (("mul", weight), ("add", bias)):
        if node is not None:
            x = x.apply(op, Term(x.b, x.b.reshape(node, shape), x.dtype))
    return x


def _input_gradient(scaled: Term, normal: Term, rstd: Term, axes: Sequence[int]) -> Term:
    """The gradient of what was normalised, from the gradient of the normal values."""
    return (scaled - scaled.mean(axes) - normal * (scaled * normal).mean(axes)) * rstd


def _parameter_gradients(
    grad: Term, normal: Term, axes: Sequence[int], out: Any, mask: Sequence[bool]
) -> list[Node | None]:
    """The gradients of weight and bias: what is asked for, in the shapes of the last two results."""
    gradients: list[Node | None] = []
    for wanted, fake, make in ((mask[1], out[1], lambda: grad * normal), (mask[2], out[2], lambda: grad)):
        if not wanted or fake is None:
            gradients.append(None)
        else:
            gradients.append(grad.b.reshape(make().sum(axes).as_(fake.dtype), tuple(fake.shape)))
    return gradients


# Layer norm -----------------------------------------------------------------------------------------------------


@_lowers(aten.native_layer_norm.default)
def _layer_norm(
    b: Builder, out: Any, x: Node, shape: Sequence[int], weight: Node | None, bias: Node | None, eps: float
) -> Any:
    axes = list(range(len(x.shape) - len(shape), len(x.shape)))
    t = Term(b, x, wide(x.dtype))
    spread, mean = variance(t, axes, 0)
    rstd = (spread + eps).apply("rsqrt")
    result = _scaled((t - mean) * rstd, weight, bias, tuple(shape))
    return result.as_(out[0].dtype), mean.as_(out[1].dtype), rstd.as_(out[2].dtype)


@_lowers(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    b: Builder, out: Any, grad: Node, x: Node, shape: Sequence[int], mean: Node, rstd: Node, weight: Node | None,
    bias: Node | None, mask: Sequence[bool],
) -> Any:  # fmt: skip
    rank = len(x.shape)
    rows, axes = range(rank - len(shape)), range(rank - len(shape), rank)
    dtype = wide(x.dtype)
    g, r = Term(b, grad, dtype), Term(b, rstd, dtype)
    normal = (Term(b, x, dtype) - Term(b, mean, dtype)) * r
    grad_x = None
    if mask[0]:
        grad_x = _input_gradient(_scaled(g, weight, None, tuple(shape)), normal, r, axes).as_(x.dtype)
    return grad_x, *_parameter_gradients(g, normal, rows, out, mask)


# By the root of the mean square, which is one operation on GPUs -------------------------------------------------------


@_lowers(*overloads("_fused_rms_norm", ["default"]))
def _rms_norm(
    b: Builder, out: Any, x: Node, shape: Sequence[int], weight: Node | None, eps: float | None
) -> tuple[Node, Node]:
    axes = list(range(len(x.shape) - len(shape), len(x.shape)))
    t = Term(b, x, wide(x.dtype))
    least = torch.finfo(t.dtype).eps if eps is None else eps
    rstd = ((t * t).mean(axes) + least).apply("rsqrt")
    result = _scaled(t * rstd, weight, None, tuple(shape))
    return result.as_(out[0].dtype), b.reshape(rstd.as_(out[1].dtype), tuple(out[1].shape))


@_lowers(*overloads("_fused_rms_norm_backward", ["default"]))
def _rms_norm_backward(
    b: Builder, out: Any, grad: Node, x: Node, shape: Sequence[int], rstd: Node, weight: Node | None,
    mask: Sequence[bool],
) -> tuple[Node | None, Node | None]:  # fmt: skip
    rank = len(x.shape)
    rows, axes = range(rank - len(shape)), range(rank - len(shape), rank)
    g, r = Term(b, grad, wide(x.dtype)), Term(b, rstd, wide(x.dtype))
    normal = Term(b, x, g.dtype) * r
    grad_x = grad_weight = None
    if mask[0] and out[0] is not None:
        scaled = _scaled(g, weight, None, tuple(shape))
        grad_x = ((scaled - normal * (scaled * normal).mean(axes)) * r).as_(out[0].dtype)
    if mask[1] and out[1] is not None and weight is not None:
        grad_weight = b.reshape((g * normal).sum(rows).as_(out[1].dtype), tuple(out[1].shape))
    return grad_x, grad_weight


# Group norm: the channels apart, as (batch, group, channel in group, place) -----------------------------------------


def _grouped(b: Builder, x: Node, groups: int) -> Node:
    return b.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))


@_lowers(aten.native_group_norm.default)
def _group_norm(
    b: Builder, out: Any, x: Node, weight: Node | None, bias: Node | None, n: int, c: int, hw: int, groups: int,
    eps: float,
) -> Any:  # fmt: skip
    t = Term(b, _grouped(b, x, groups), wide(x.dtype))
    rank = len(t.node.shape)
    spread, mean = variance(t, range(2, rank), 0)
    rstd = (spread + eps).apply("rsqrt")
    result = _scaled((t - mean) * rstd, weight, bias, _of_channels(groups, c, rank))
    return (
        b.reshape(result.as_(out[0].dtype), x.shape),
        b.reshape(mean.as_(out[1].dtype), tuple(out[1].shape)),
        b.reshape(rstd.as_(out[2].dtype), tuple(out[2].shape)),
    )


@_lowers(aten.native_group_norm_backward.default)
def _group_norm_backward(
    b: Builder, out: Any, grad: Node, x: Node, mean: Node, rstd: Node, weight: Node | None, n: int, c: int, hw: int,
    groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    dtype = wide(x.dtype)
    g, t = Term(b, _grouped(b, grad, groups), dtype), Term(b, _grouped(b, x, groups), dtype)
    rank = len(t.node.shape)
    of_group = (n, groups, *[1] * (rank - 2))
    m, r = (Term(b, b.reshape(node, of_group), dtype) for node in (mean, rstd))
    normal = (t - m) * r
    grad_x = None
    if mask[0]:
        scaled = _scaled(g, weight, None, _of_channels(groups, c, rank))
        gradient = _input_gradient(scaled, normal, r, range(2, rank)).as_(x.dtype)
        grad_x = b.reshape(gradient, x.shape)
    return grad_x, *_parameter_gradients(g, normal, [0, *range(3, rank)], out, mask)


def _of_channels(groups: int, channels: int, rank: int) -> Shape:
    return (1, groups, channels // groups, *[1] * (rank - 3))


# Batch norm ---------------------------------------------------------------------------------------------------------


def _channels(x: Node) -> Shape:
    """The shape of one number for each channel beside ``x``."""
    return (1, x.shape[1], *[1] * (len(x.shape) - 2))


def _over_batch(x: Node) -> list[int]:
    return [0, *range(2, len(x.shape))]


def _normalised(
    b: Builder, out: torch.Tensor, x: Node, weight: Node | None, bias: Node | None, mean: Term, rstd: Term
) -> Node:
    return _scaled((Term(b, x, mean.dtype) - mean) * rstd, weight, bias, _channels(x)).as_(out.dtype)


def _statistics(b: Builder, x: Node, eps: float) -> tuple[Term, Term, Term]:
    """Mean, variance and one over the deviation, for each channel."""
    t, axes = Term(b, x, wide(x.dtype)), _over_batch(x)
    if b.on_gpu and isinstance(x, Buffer):
        spread, mean = _at_once(b, x, t, axes)
    else:
        spread, mean = variance(t, axes, 0)
    return mean, spread, (spread + eps).apply("rsqrt")


def _at_once(b: Builder, x: Buffer, t: Term, axes: Sequence[int]) -> tuple[Term, Term]:
    """Variance and mean by one pass over memory. The first of each channel is where the others are: of the squares of
    what they differ by from it, little is lost when the square of the mean difference is taken away."""
    apart = t - Term(b, b.window(x, _channels(x), x.strides), t.dtype)
    difference = apart.mean(axes)
    spread = (apart * apart).mean(axes) - difference * difference
    return spread.apply("clamp_min", 0.0), t.mean(axes)


def _running(
    b: Builder, x: Node, mean: Term, spread: Term, running: Sequence[Node | None], momentum: float
) -> list[Node | None]:
    """The running mean and variance after this batch; the variance is the unbiased one."""
    count = x.numel // x.shape[1]
    statistics: list[Node | None] = []
    for old, new in zip(running, (mean, spread * (count / max(count - 1, 1))), strict=True):
        if old is None:
            statistics.append(None)
        else:
            mixed = Term(b, old, mean.dtype) * (1 - momentum) + new.reshape(old.shape) * momentum
            statistics.append(mixed.as_(old.dtype))
    return statistics


def _per_channel(b: Builder, value: Term, fake: torch.Tensor) -> Node:
    return b.reshape(value.as_(fake.dtype), tuple(fake.shape))


@_lowers(aten.native_batch_norm.default)
def _batch_norm(
    b: Builder, out: Any, x: Node, weight: Node | None, bias: Node | None, running_mean: Node | None,
    running_var: Node | None, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    if not x.numel or (training and x.numel == x.shape[1]):
        raise NotLowered
    if not training:
        return _batch_norm_of_statistics(b, out, x, weight, bias, running_mean, running_var, eps)
    mean, spread, rstd = _statistics(b, x, eps)
    for old, new in zip(
        (running_mean, running_var), _running(b, x, mean, spread, (running_mean, running_var), momentum), strict=True
    ):
        if old is not None and new is not None:
            b.update(old, new)
    result = _normalised(b, out[0], x, weight, bias, mean, rstd)
    return result, _per_channel(b, mean, out[1]), _per_channel(b, rstd, out[2])


def _batch_norm_of_statistics(
    b: Builder, out: Any, x: Node, weight: Node | None, bias: Node | None, running_mean: Node | None,
    running_var: Node | None, eps: float,
) -> Any:  # fmt: skip
    mean, rstd = _from_running(b, x, running_mean, running_var, eps)
    result = _normalised(b, out[0], x, weight, bias, mean, rstd)
    if all(fake.numel() for fake in out[1:]):  # on a GPU ATen gives what it has used
        return result, _per_channel(b, mean, out[1]), _per_channel(b, rstd, out[2])
    # What would be kept for the backward is not there without training.
    return result, *(b.empty(fake) for fake in out[1:])


def _from_running(b: Builder, x: Node, mean: Node | None, var: Node | None, eps: float) -> tuple[Term, Term]:
    if mean is None or var is None:
        raise NotLowered
    m, v = (Term(b, b.reshape(node, _channels(x)), wide(x.dtype)) for node in (mean, var))
    return m, (v + eps).apply("rsqrt")


@_lowers(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_no_training(
    b: Builder, out: Any, x: Node, weight: Node | None, bias: Node | None, running_mean: Node, running_var: Node,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    return _batch_norm_of_statistics(b, out, x, weight, bias, running_mean, running_var, eps)


@_lowers(aten._native_batch_norm_legit.no_stats)
def _batch_norm_no_stats(
    b: Builder, out: Any, x: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float, eps: float
) -> Any:
    return _batch_norm(b, out, x, weight, bias, None, None, True, momentum, eps)


@_lowers(aten._native_batch_norm_legit_functional.default)
def _batch_norm_functional(
    b: Builder, out: Any, x: Node, weight: Node | None, bias: Node | None, running_mean: Node, running_var: Node,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    if not training or not x.numel or x.numel == x.shape[1]:
        raise NotLowered
    mean, spread, rstd = _statistics(b, x, eps)
    updated = _running(b, x, mean, spread, (running_mean, running_var), momentum)
    result = _normalised(b, out[0], x, weight, bias, mean, rstd)
    return result, _per_channel(b, mean, out[1]), _per_channel(b, rstd, out[2]), *updated


@_lowers(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    b: Builder, out: Any, grad: Node, x: Node, weight: Node | None, running_mean: Node | None,
    running_var: Node | None, saved_mean: Node | None, saved_rstd: Node | None, training: bool, eps: float,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    if not x.numel:
        raise NotLowered
    dtype, axes, shape = wide(x.dtype), _over_batch(x), _channels(x)
    if not training:
        m, r = _from_running(b, x, running_mean, running_var, eps)
    elif saved_mean is None or saved_rstd is None:
        raise NotLowered
    else:
        m, r = (Term(b, b.reshape(node, shape), dtype) for node in (saved_mean, saved_rstd))
    g = Term(b, grad, dtype)
    normal = (Term(b, x, dtype) - m) * r
    # A channel's weight is one number, so that the gradients of parameters are all the sums that are needed.
    of_weight, of_bias = (g * normal).sum(axes), g.sum(axes)
    count = math.prod(x.shape[axis] for axis in axes)
    gradient = (g - of_bias / count - normal * (of_weight / count)) * r if training else g * r
    results = (_scaled(gradient, weight, None, shape), of_weight, of_bias)
    return tuple(
        b.reshape(result.as_(fake.dtype), tuple(fake.shape)) if want and fake is not None else None
        for result, fake, want in zip(results, out, mask, strict=True)
    )
