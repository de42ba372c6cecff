"""The recurrent layers that the CPU has kernels for."""

from __future__ import annotations

from typing import Any

import torch

from bothways.fake.layout import contiguous
from bothways.fake.tensor import NotThin, Spec, ThinTensor


def _new(shape: tuple[int, ...], dtype: torch.dtype) -> Spec:
    return Spec(shape, contiguous(shape), dtype)


def _like(tensor: ThinTensor) -> Spec:
    return _new(tuple(tensor.shape), tensor.dtype)


def _layer(
    tensor: ThinTensor,
    w0: ThinTensor,
    w1: ThinTensor,
    w2: ThinTensor,
    w3: ThinTensor,
    hidden: ThinTensor,
    cell: ThinTensor,
    reverse: bool,
    batch_sizes: Any,
    mode: int,
    hidden_size: int,
    *rest: Any,
) -> tuple[Spec, ...]:
    """What the kernel leaves for its backward is its own business: its size is never looked at."""
    if tensor.dim() != 3 or tensor.dtype is not torch.float32 or batch_sizes:
        raise NotThin("a recurrent layer on packed sequences")
    output = _new((*tensor.shape[:2], hidden_size), tensor.dtype)
    return output, _like(hidden), _like(cell), _new((0,), torch.uint8)


def _layer_backward(
    tensor: ThinTensor,
    w0: ThinTensor,
    w1: ThinTensor,
    w2: ThinTensor,
    w3: ThinTensor,
    hidden: ThinTensor,
    cell: ThinTensor,
    *rest: Any,
) -> tuple[Spec, ...]:
    bias = _new((w0.shape[0],), w0.dtype)
    return _like(tensor), _like(w0), _like(w1), bias, bias, _like(hidden), _like(cell)


RULES = {"mkldnn_rnn_layer": _layer, "mkldnn_rnn_layer_backward": _layer_backward}
