"""What autograd does where a backward begins and ends, as Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from bothways import torch_compat

Hook = Callable[[torch.Tensor], Any]


def first_gradient(output: torch.Tensor) -> torch.Tensor:
    """The gradient of a number by itself."""
    return torch.ones_like(output, memory_format=torch.preserve_format)


def no_gradient(tensor: torch.Tensor, create_graph: bool) -> torch.Tensor:
    """The gradient of a tensor that a backward does not come to, for a caller who wants one."""
    return torch.zeros_like(tensor, requires_grad=create_graph)


def in_backward(function: Callable[..., Any], create_graph: bool, *args: Any) -> Any:
    """Call what runs inside a backward, which is differentiated where that is asked for."""
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(create_graph)
    try:
        return function(*args)
    finally:
        torch.set_grad_enabled(before)


def total(gradients: list[torch.Tensor]) -> torch.Tensor:
    result = gradients[0]
    for gradient in gradients[1:]:
        result = result + gradient
    return result


def through_hooks(gradient: torch.Tensor, hooks: list[Hook]) -> torch.Tensor:
    """A gradient as the hooks of a tensor leave it."""
    for hook in hooks:
        other = hook(gradient)
        if other is not None:
            gradient = other
    return gradient


def retained(gradient: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """The gradient that a computed tensor keeps, with what it has from backwards before."""
    return gradient.clone(memory_format=torch.contiguous_format) if before is None else before + gradient


def accumulate(leaf: Any, gradient: torch.Tensor, copies: str | None) -> None:
    """Give a leaf its gradient; the sum is a new tensor only where it is to be differentiated."""
    if leaf.grad is None:
        if copies is None:
            leaf.grad = gradient.detach()
        elif copies == "contiguous":
            leaf.grad = gradient.clone(memory_format=torch.contiguous_format)
        else:
            leaf.grad = torch.empty_like(leaf.detach()).copy_(gradient)
    elif torch.is_grad_enabled():
        leaf.grad = leaf.grad + gradient
    else:
        leaf.grad.add_(gradient)


def enter_module(
    module: torch.nn.Module,
    hooks: list[Callable[..., Any]],
    gradients: list[torch.Tensor | None],
    places: tuple[int, ...],
    count: int,
    before: list[Callable[..., Any]],
    inputs: int | None,
) -> tuple[tuple[torch.Tensor | None, ...] | None, list[torch.Tensor | None]]:
    """A backward comes to a module's results; ``inputs`` is how many there are where none of them needs a gradient."""
    seen = _at_places(gradients, places, count)
    for hook in before:
        other = hook(module, seen)
        if other is not None:
            if len(other) != count:
                raise RuntimeError(
                    "Backward pre hook returned an invalid number of grad_output, "
                    f"got {len(other)}, but expected {count}"
                )
            seen = other
    results = [seen[place] for place in places]
    if inputs is None:
        return seen, results
    warnings.warn(torch_compat.NO_INPUT_NEEDS_GRADIENTS, stacklevel=3)
    for hook in hooks:
        other = hook(module, (None,) * inputs, seen)
        if other is not None and not (isinstance(other, tuple) and all(part is None for part in other)):
            raise RuntimeError(
                "Backward hook for Modules where no input requires "
                "gradient should always return None or None for all gradients."
            )
    return None, results


def leave_module(
    module: torch.nn.Module,
    hooks: list[Callable[..., Any]],
    gradients: list[torch.Tensor | None],
    places: tuple[int, ...],
    count: int,
    seen: tuple[torch.Tensor | None, ...] | None,
) -> list[torch.Tensor | None]:
    """A backward comes to what a module was given; ``seen`` are the gradients of its results."""
    if seen is None:
        return gradients
    own = _at_places(gradients, places, count)
    for hook in hooks:
        other = hook(module, own, seen)
        if other is not None:
            if len(other) != count:
                raise RuntimeError(
                    "Backward hook returned an invalid number of grad_input, "
                    f"got {len(other)}, but expected {count}"
                )
            own = other
    return [own[place] for place in places]


def _at_places(
    gradients: list[torch.Tensor | None], places: tuple[int, ...], count: int
) -> tuple[torch.Tensor | None, ...]:
    placed: list[torch.Tensor | None] = [None] * count
    for place, gradient in zip(places, gradients, strict=True):
        placed[place] = gradient
    return tuple(placed)


def call_after(leaf: torch.Tensor, hook: Hook) -> None:
    """Call what is registered for when a leaf has its gradient."""
    hook(leaf)
