"""Custom functions inside a captured backward: their own Python, with a context that the program fills.

When a program runs, the engine has let go of what nodes saved, and capture cannot look into a node. So a node is
*opened*: an object with the node's own attributes takes its place, and what was saved comes from the program's inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from bothways.torch_compat import backward_engine

Gradient = torch.Tensor | None


class Opened:
    """A node of a custom function: it shares the node's dictionary, so that what is set here is set there."""

    forward_class: type[torch.autograd.Function]


@functools.cache
def opened_class(forward_class: type[torch.autograd.Function]) -> type[Opened]:
    """A class for the nodes of one function, so that capture knows whose backward it looks into."""
    return type(f"{forward_class.__name__}Opened", (Opened,), {"forward_class": forward_class})


class Received:
    """What is known of a node's results: for gradients that did not arrive and have to be zeros."""

    def __init__(self, node: Any) -> None:
        metadata = backward_engine.results_of(node)
        self.sizes = [tuple(one.shape) for one in metadata]
        self.dtypes = [one.dtype for one in metadata]
        self.devices = [one.device for one in metadata]


def opened(node: Any) -> tuple[Opened, Received]:
    """A node of a custom function as a program takes it."""
    context = opened_class(backward_engine.function_of(node))()
    context.__dict__ = node.__dict__
    return context, Received(node)


class FilledContext:
    """The ``ctx`` that a custom backward is given."""

    def __init__(
        self, node: Opened, saved: Sequence[Any], needs_input_grad: tuple[bool, ...], materializes: bool
    ) -> None:
        object.__setattr__(self, "_node", node)
        object.__setattr__(self, "saved_tensors", tuple(saved))
        object.__setattr__(self, "needs_input_grad", needs_input_grad)
        object.__setattr__(self, "materialize_grads", materializes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._node, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._node, name)

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        return self.saved_tensors

    @property
    def _forward_cls(self) -> type[torch.autograd.Function]:
        return self._node.forward_class

    def maybe_clear_saved_tensors(self) -> None:
        """The engine has let go of them already."""


def custom(
    opened_node: tuple[Opened, Received],
    saved: Sequence[Any],
    grads: Sequence[Gradient],
    needs: tuple[bool, ...],
    takes_tensor: Sequence[bool],
    materializes: bool,
) -> list[Gradient]:
    """Run a custom backward; ``needs`` is its ``needs_input_grad``, ``takes_tensor`` which arguments were tensors."""
    node, received = opened_node
    context = FilledContext(node, saved, needs, materializes)
    arrived = list(grads)
    if materializes:
        arrived = [zeros(received, place) if grad is None else grad for place, grad in enumerate(grads)]
    function = node.forward_class
    run = function.vjp if function.vjp is not torch.autograd.Function.vjp else function.backward
    results = run(context, *arrived)
    return checked(function, results, takes_tensor)


def zeros(received: Received, place: int) -> Gradient:
    return torch.zeros(received.sizes[place], dtype=received.dtypes[place], device=received.devices[place])


def checked(function: type, results: Any, takes_tensor: Sequence[bool]) -> list[Gradient]:
    """The results as the engine takes them, or its errors."""
    gradients = list(results) if isinstance(results, tuple) else [results]
    name, count = function.__name__ + "Backward", len(takes_tensor)
    while len(gradients) > count and gradients[-1] is None:
        gradients.pop()
    if len(gradients) != count:
        raise RuntimeError(
            f"function {name} returned an incorrect number of gradients (expected {count}, got {len(gradients)})"
        )
    for place, result in enumerate(gradients):
        if result is None:
            continue
        if not takes_tensor[place]:
            raise RuntimeError(
                f"function {name} returned a gradient different than None at position {place + 1}, but the "
                "corresponding forward input was not a Variable"
            )
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"expected Variable or None (got {type(result).__name__})")
    return gradients
