"""Dropout: ATen draws the numbers, so that they are eager's own; the rest is arithmetic."""

from __future__ import annotations

from typing import Any

import torch

from bothways.lower.builder import Builder
from bothways.lower.lowerings.registry import aten, lowers
from bothways.lower.lowerings.term import Term, terms
from bothways.lower.prims import Node


def draw_mask(shape: list[int], strides: list[int], probability: float) -> torch.Tensor:
    """What ATen's dropout keeps."""
    return torch.empty_strided(shape, strides, dtype=torch.bool).bernoulli_(probability)


@lowers(aten.native_dropout.default)
def _dropout(b: Builder, out: Any, x: Node, p: float, train: bool | None) -> tuple[Node, Node]:
    if train is False:
        return b.map("copy", x, dtype=out[0].dtype), b.full(x.shape, True, torch.bool)
    kept = 1 - p
    arguments = (list(out[1].shape), list(out[1].stride()), kept)
    mask = b.extern(draw_mask, arguments, {}, out[1], "mask")
    [t] = terms(b, out[0].dtype, x)
    scale = 1 / kept if kept else 0.0
    return (t * Term(b, mask, t.dtype) * scale).as_(out[0].dtype), mask


@lowers(aten.native_dropout_backward.default)
def _dropout_backward(b: Builder, out: torch.Tensor, grad: Node, mask: Node, scale: float) -> Node:
    g, m = terms(b, out.dtype, grad, mask)
    return (g * m * scale).as_(out.dtype)
