"""What autograd does where a backward begins and ends, as Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def first_gradient(output: torch.Tensor) -> torch.Tensor:
    """The gradient of a number by itself."""
    return torch.ones_like(output, memory_format=torch.preserve_format)


def no_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """The gradient of a tensor that a backward does not come to, for a caller who wants one."""
    return torch.zeros_like(tensor, requires_grad=True)


def accumulate(
    leaf: Any,
    gradient: torch.Tensor,
    hooks: list[Callable[..., Any]],
    after: list[Callable[..., Any]],
    create_graph: bool,
) -> None:
    """Give a leaf its gradient; the sum is a new tensor only where it is to be differentiated."""
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(create_graph)
    for hook in hooks:
        other = hook(gradient)
        if other is not None:
            gradient = other
    if leaf.grad is None:
        leaf.grad = gradient if create_graph else gradient.detach()
    elif create_graph:
        leaf.grad = leaf.grad + gradient
    else:
        leaf.grad.add_(gradient)
    for hook in after:
        hook(leaf)
    torch.set_grad_enabled(before)
