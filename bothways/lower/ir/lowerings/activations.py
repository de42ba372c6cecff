"""Activation functions and their backwards, each as the formula that ATen's kernel has."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.arithmetic import refuse_nan
from bothways.lower.ir.lowerings.joining import concatenated
from bothways.lower.ir.lowerings.registry import aten, lowers, lowers_floating
from bothways.lower.ir.lowerings.term import Term, both, either, number_as, terms, wide
from bothways.lower.ir.prims import Node
from bothways.lower.ir.shapes import normal_dim

KAPPA, BETA = 0.044715, math.sqrt(2 / math.pi)
ONE_SIXTH = struct.unpack("f", struct.pack("f", 1 / 6))[0]  # in single precision for every dtype, as ATen has it


@lowers_floating(aten.gelu.default)
def _gelu(b: Builder, out: torch.Tensor, x: Node, *, approximate: str = "none") -> Node:
    [t] = terms(b, out.dtype, x)
    if approximate == "tanh":
        inner = BETA * (t + KAPPA * (t * t * t))
        return (0.5 * t * (1 + inner.tanh())).as_(out.dtype)
    return (t * 0.5 * (1 + (t * math.sqrt(0.5)).apply("erf"))).as_(out.dtype)


@lowers_floating(aten.gelu_backward.default)
def _gelu_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, *, approximate: str = "none") -> Node:
    g, t = terms(b, out.dtype, grad, x)
    if approximate == "tanh":
        square = t * t
        tanh = (BETA * (t + KAPPA * (square * t))).tanh()
        slope = 0.5 * t * (1 - tanh * tanh) * (BETA * (1 + 3 * KAPPA * square))
        return (g * (0.5 * (1 + tanh) + slope)).as_(out.dtype)
    cdf = 0.5 * (1 + (t * math.sqrt(0.5)).apply("erf"))
    pdf = (t * t * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return (g * (cdf + t * pdf)).as_(out.dtype)


@lowers_floating(aten.silu.default)
def _silu(b: Builder, out: torch.Tensor, x: Node) -> Node:
    [t] = terms(b, out.dtype, x)
    return (t / (1 + (-t).exp())).as_(out.dtype)


@lowers_floating(aten.silu_backward.default)
def _silu_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    sigmoid = t.sigmoid()
    return (g * sigmoid * (1 + t * (1 - sigmoid))).as_(out.dtype)


@lowers_floating(aten.mish.default)
def _mish(b: Builder, out: torch.Tensor, x: Node) -> Node:
    [t] = terms(b, out.dtype, x)
    return (t * t.exp().log1p().tanh()).as_(out.dtype)


@lowers_floating(aten.mish_backward.default)
def _mish_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    tanh = t.exp().log1p().tanh()
    return (g * (tanh + t * t.sigmoid() * (1 - tanh * tanh))).as_(out.dtype)


@lowers_floating(aten.sigmoid_backward.default)
def _sigmoid_backward(b: Builder, out: torch.Tensor, grad: Node, y: Node) -> Node:
    g, s = terms(b, out.dtype, grad, y)
    if out.dtype == torch.float16:  # ATen computes bfloat16 in float, and this in its own precision
        return ((g * (1 - s).stored(out.dtype)).stored(out.dtype) * s).as_(out.dtype)
    return (g * (1 - s) * s).as_(out.dtype)


@lowers_floating(aten.tanh_backward.default)
def _tanh_backward(b: Builder, out: torch.Tensor, grad: Node, y: Node) -> Node:
    g, t = terms(b, out.dtype, grad, y)
    return (g * (1 - t * t)).as_(out.dtype)


@lowers_floating(aten.log_sigmoid_forward.default)
def _log_sigmoid(b: Builder, out: Any, x: Node) -> tuple[Node, Node]:
    """The second result is what ATen keeps for its backward."""
    [t] = terms(b, out[0].dtype, x)
    z = (-t.abs()).exp()
    return (t.minimum(0) - z.log1p()).as_(out[0].dtype), z.as_(out[1].dtype)


@lowers_floating(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, kept: Node) -> Node:
    if kept.shape != x.shape:
        raise NotLowered
    g, t, z = terms(b, out.dtype, grad, x, kept)
    share = z / (1 + z)
    return (g * (1 - share).where(t < 0, 0 + share)).as_(out.dtype)


# With a corner ----------------------------------------------------------------------------------------------------


@lowers(aten.threshold.default)
def _threshold(b: Builder, out: torch.Tensor, x: Node, threshold: float, value: float) -> Node:
    if out.dtype == torch.bool:
        raise NotLowered
    [t] = terms(b, out.dtype, x)
    return Term(b, value, t.dtype).where(t <= threshold, t).as_(out.dtype)


@lowers(aten.threshold_backward.default)
def _threshold_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, threshold: float) -> Node:
    if torch.bool in (out.dtype, x.dtype):
        raise NotLowered
    g, t = Term(b, grad, out.dtype), Term(b, x, wide(x.dtype))
    return Term(b, 0, out.dtype).where(t <= threshold, g).node


@lowers_floating(aten.leaky_relu.default)
def _leaky_relu(b: Builder, out: torch.Tensor, x: Node, slope: float = 0.01) -> Node:
    [t] = terms(b, out.dtype, x)
    return t.where(t > 0, t * slope).as_(out.dtype)


@lowers_floating(aten.leaky_relu_backward.default)
def _leaky_relu_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, slope: float, is_result: bool
) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    return g.where(t > 0, g * slope).as_(out.dtype)


@lowers_floating(aten._prelu_kernel.default)
def _prelu(b: Builder, out: torch.Tensor, x: Node, weight: Node) -> Node:
    t, w = terms(b, out.dtype, x, weight)
    return t.where(t > 0, t * w).as_(out.dtype)


@lowers_floating(aten._prelu_kernel_backward.default)
def _prelu_backward(b: Builder, out: Any, grad: Node, x: Node, weight: Node) -> tuple[Node, Node]:
    g, t, w = terms(b, out[0].dtype, grad, x, weight)
    of_weight = Term(b, 0, g.dtype).where(t > 0, t * g)
    return g.where(t > 0, w * g).as_(out[0].dtype), of_weight.as_(out[1].dtype)


@lowers(aten.hardtanh.default)
def _hardtanh(b: Builder, out: torch.Tensor, x: Node, low: Any = -1, high: Any = 1) -> Node:
    refuse_nan(low, high)
    return Term(b, x, out.dtype).clamp(low, high).node


@lowers_floating(aten.hardtanh_backward.default)
def _hardtanh_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, low: Any, high: Any) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    return g.where(both(b, t > low, t < high), 0).as_(out.dtype)


@lowers_floating(aten.hardsigmoid.default)
def _hardsigmoid(b: Builder, out: torch.Tensor, x: Node) -> Node:
    [t] = terms(b, out.dtype, x)
    return ((t + 3).clamp(0, 6) / 6).as_(out.dtype)


@lowers_floating(aten.hardsigmoid_backward.default)
def _hardsigmoid_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    return (g * ONE_SIXTH).where(both(b, t > -3, t < 3), 0).as_(out.dtype)


@lowers_floating(aten.hardswish.default)
def _hardswish(b: Builder, out: torch.Tensor, x: Node) -> Node:
    [t] = terms(b, out.dtype, x)
    return (t * (t + 3).clamp(0, 6) / 6).as_(out.dtype)


@lowers_floating(aten.hardswish_backward.default)
def _hardswish_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    inside = g.where(t >= 3, g * (t / 3 + 0.5))
    return Term(b, 0, g.dtype).where(t <= -3, inside).as_(out.dtype)


@lowers_floating(aten.softshrink.default)
def _softshrink(b: Builder, out: torch.Tensor, x: Node, lambd: float = 0.5) -> Node:
    [t] = terms(b, out.dtype, x)
    above = either(b, t > lambd, t.isnan())
    return (t - lambd).where(above, (t + lambd).where(t < -lambd, 0)).as_(out.dtype)


@lowers_floating(aten.hardshrink.default)
def _hardshrink(b: Builder, out: torch.Tensor, x: Node, lambd: float = 0.5) -> Node:
    t = Term(b, x, out.dtype)
    return Term(b, 0, out.dtype).where(both(b, t >= -lambd, t <= lambd), t).node


@lowers_floating(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def _shrink_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, lambd: float) -> Node:
    g, t = Term(b, grad, out.dtype), Term(b, x, x.dtype)
    return g.where(either(b, t < -lambd, t > lambd), 0).node


# Exponential on one side --------------------------------------------------------------------------------------------


@lowers_floating(aten.elu.default)
def _elu(
    b: Builder, out: torch.Tensor, x: Node, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Node:
    [t] = terms(b, out.dtype, x)
    return ((t * input_scale).apply("expm1") * (alpha * scale)).where(t < 0, t * scale).as_(out.dtype)


@lowers_floating(aten.celu.default)
def _celu(b: Builder, out: torch.Tensor, x: Node, alpha: float = 1) -> Node:
    return _elu(b, out, x, alpha, 1, 1 / alpha)


@lowers_floating(aten.elu_backward.default)
def _elu_backward(
    b: Builder, out: torch.Tensor, grad: Node, alpha: float, scale: float, input_scale: float, is_result: bool, x: Node
) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    factor = alpha * scale
    if is_result:
        negative = g * input_scale * (t + factor)
    else:
        negative = g * input_scale * factor * (t * input_scale).exp()
    return (g * scale).where(t > 0, negative).as_(out.dtype)


@lowers_floating(aten.softplus.default)
def _softplus(b: Builder, out: torch.Tensor, x: Node, beta: float = 1, threshold: float = 20) -> Node:
    [t] = terms(b, out.dtype, x)
    z = t * beta
    return t.where(z > threshold, z.exp().log1p() / beta).as_(out.dtype)


@lowers_floating(aten.softplus_backward.default)
def _softplus_backward(
    b: Builder, out: torch.Tensor, grad: Node, x: Node, beta: float, threshold: float
) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    z = (t * beta).exp()
    return g.where(t * beta > threshold, g * z / (z + 1)).as_(out.dtype)


@lowers_floating(aten.logit.default)
def _logit(b: Builder, out: torch.Tensor, x: Node, eps: float | None = None) -> Node:
    [t] = terms(b, out.dtype, x)
    if eps is not None:
        low = number_as(out.dtype, eps)
        t = t.clamp(low, number_as(out.dtype, 1 - low))
    return (t / (1 - t).stored(out.dtype)).stored(out.dtype).log().as_(out.dtype)


@lowers_floating(aten.logit_backward.default)
def _logit_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, eps: float | None = None) -> Node:
    g, t = terms(b, out.dtype, grad, x)
    low, outside = (0.0, math.nan) if eps is None else (number_as(out.dtype, eps), 0.0)
    inside = g / (t * (1 - t).stored(out.dtype)).stored(out.dtype)
    return inside.where(both(b, t >= low, t <= number_as(out.dtype, 1 - low)), outside).as_(out.dtype)


# Gated --------------------------------------------------------------------------------------------------------------


@lowers_floating(aten.glu.default)
def _glu(b: Builder, out: torch.Tensor, x: Node, dim: int = -1) -> Node:
    first, second = terms(b, out.dtype, *_halves(b, x, dim))
    return (first * second.sigmoid()).as_(out.dtype)


@lowers_floating(aten.glu_backward.default)
def _glu_backward(b: Builder, out: torch.Tensor, grad: Node, x: Node, dim: int) -> Node:
    g, first, second = terms(b, out.dtype, grad, *_halves(b, x, dim))
    sigmoid = second.sigmoid().stored(out.dtype)
    parts = [(sigmoid * g).as_(out.dtype), ((1 - sigmoid) * sigmoid * g * first).as_(out.dtype)]
    return concatenated(b, out, parts, normal_dim(dim, len(x.shape)))


def _halves(b: Builder, x: Node, dim: int) -> tuple[Node, Node]:
    dim = normal_dim(dim, len(x.shape))
    size = x.shape[dim] // 2
    return b.slice(x, dim, 0, size), b.slice(x, dim, size, size)
