"""Backward calls inside of graphs, and what is left of tensors whose history such a call has used up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import torch

from bothways import torch_compat


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    retain_graph: bool,
    create_graph: bool,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of ``inputs`` by a backward from ``outputs``; the graph itself calls the hooks of the inputs."""
    hooks = [(tensor._backward_hooks, dict(tensor._backward_hooks)) for tensor in inputs if tensor._backward_hooks]
    for registered, _ in hooks:
        registered.clear()
    try:
        return torch_compat.run_backward(outputs, tangents, inputs, retain_graph, create_graph)
    finally:
        for registered, before in hooks:
            registered.update(before)


def laid_out(gradient: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The gradient as it lies where the whole backward is PyTorch's."""
    if gradient.stride() == strides:
        return gradient
    return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as the beginning of a history of its own: a backward stops there, and begins anew behind it."""
    return tensor.detach().requires_grad_()


def spent(tensor: torch.Tensor, name: str, *behind: torch.Tensor) -> torch.Tensor:
    """A tensor that needs gradients, and whose backward was run: a second one is refused as autograd refuses it.

    ``name`` is what autograd calls the operation that computed it, and ``behind`` are those it was computed from, whose
    gradients a backward through it may be asked for.
    """
    apply = _spent_function(name)
    if torch_compat.is_grad_enabled():
        return apply(tensor, _leaf(), *behind)
    torch_compat.set_grad_enabled(True)
    try:
        return apply(tensor, _leaf(), *behind)
    finally:
        torch_compat.set_grad_enabled(False)


@lru_cache(None)
def _leaf() -> torch.Tensor:
    """What a history begins with that no backward goes through."""
    with torch.inference_mode(False), torch_compat.no_modes():
        return torch.empty(0, requires_grad=True, device="cpu")


@lru_cache(None)
def _spent_function(name: str) -> Callable[..., torch.Tensor]:
    function: Any = type(name, (_Spent,), {})
    function._backward_cls.__name__ = function._backward_cls.__qualname__ = name
    return torch_compat.unchecked_apply(function)


class _Spent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *behind: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:
        raise RuntimeError(torch_compat.FREED)
