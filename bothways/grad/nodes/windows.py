"""Parameters that eager keeps for its backward as windows on their memory, as a matrix product keeps a weight.

Who replaces a parameter's memory (``p.data = other``) before the backward runs does not replace what such a window
shows. The node keeps a window, too, for the backward; and the parameter, which a second derivative goes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class _AsBefore(torch.autograd.Function):
    """A parameter, to autograd, with the memory that it had."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        return window.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def kept_windows(values: Sequence[torch.Tensor], places: frozenset[int]) -> tuple[torch.Tensor, ...]:
    """The values, with windows on those at ``places``."""
    return tuple([value.detach() if place in places else value for place, value in enumerate(values)])


def behind_windows(
    kept: Sequence[torch.Tensor], places: Sequence[int], parameters: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """What was kept, with ``parameters`` in the place of the windows on them."""
    values = list(kept)
    for place, parameter in zip(places, parameters, strict=True):
        window = values[place]
        same = parameter.data_ptr() == window.data_ptr() and parameter.shape == window.shape
        values[place] = parameter if same else _AsBefore.apply(parameter, window)
    return values
