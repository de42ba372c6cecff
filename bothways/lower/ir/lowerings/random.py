"""Dropout: the numbers are eager's own, drawn where ATen draws them (``calls/drawing.py``); the rest is arithmetic.

Without ``config.exact_random`` ATen draws a seed, and kernels the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bothways.calls.drawing import FILLED, draw_truths
from bothways.config import config
from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.lowerings.term import Term, terms
from bothways.lower.ir.prims import Node, is_dense


def draw_mask(shape: list[int], strides: list[int], probability: float) -> torch.Tensor:
    """What ATen's dropout keeps."""
    return draw_truths(torch.empty_strided(shape, strides, dtype=torch.bool, device="cpu"), probability)


def draw_seed() -> torch.Tensor:
    """A number for kernels to start from. Drawing it moves PyTorch's generator on."""
    return torch.empty((), dtype=torch.int64, device="cpu").random_()


def _drawn(b: Builder, out: torch.Tensor, probability: float) -> Node:
    """What ATen keeps with that probability, as a mask in memory, where it draws in the order of memory."""
    shape, strides = tuple(out.shape), tuple(out.stride())
    if out.dtype not in FILLED or not is_dense(shape, strides):
        raise NotLowered
    like = out.to(torch.bool)
    mask: Node = b.extern(draw_mask, (list(shape), list(strides), probability), {}, like, "mask")
    return mask


def _kept(b: Builder, shape: Sequence[int], probability: float) -> Node:
    """What kernels keep with that probability, as a condition."""
    seed = b.extern(draw_seed, (), {}, torch.empty((), dtype=torch.int64, device="meta"), "seed")
    place = b.reshape(b.position((math.prod(shape),), 0), shape)
    number = b.map("random", seed, place, dtype=torch.float32, of=torch.int64)
    return b.map("lt", number, probability, dtype=torch.bool, of=torch.float32)


@lowers(aten.bernoulli.p)
def _bernoulli(b: Builder, out: torch.Tensor, x: Node, p: float = 0.5, *, generator: Any = None) -> Node:
    if generator is not None or b.on_gpu:
        raise NotLowered
    kept = _drawn(b, out, p) if config.exact_random else _kept(b, out.shape, p)
    return b.where(kept, 1, 0, out.dtype)


@lowers(aten.native_dropout.default)
def _dropout(b: Builder, out: Any, x: Node, p: float, train: bool | None) -> tuple[Node, Node]:
    if train is False:
        return b.map("copy", x, dtype=out[0].dtype), b.full(x.shape, True, torch.bool)
    if b.on_gpu:
        raise NotLowered  # its numbers are eager's own, drawn where they are used
    kept = 1 - p
    mask: Node
    if config.exact_random:
        mask = _drawn(b, out[1], kept)
    else:
        mask = _kept(b, out[1].shape, kept)
    [t] = terms(b, out[0].dtype, x)
    # In half precision ATen's forward rounds it, and its backward does not.
    scale = torch.tensor(1 / kept if kept else 0.0, dtype=out[0].dtype, device="cpu").item()
    return (t * Term(b, mask, t.dtype) * scale).as_(out[0].dtype), mask


@lowers(aten.native_dropout_backward.default)
def _dropout_backward(b: Builder, out: torch.Tensor, grad: Node, mask: Node, scale: float) -> Node:
    if not grad.dtype.is_floating_point:
        raise NotLowered
    g, m = terms(b, out.dtype, grad, mask)
    return (g * m * scale).as_(out.dtype)
