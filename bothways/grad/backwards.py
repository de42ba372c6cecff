"""The backwards that were compiled for one graph, each with what it is right for.

A backward is compiled when the program is in use: what that assumes about sizes is a condition of the backward, and
where it does not hold, another one is made. With fixed sizes there is nothing to assume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from bothways.grad.halves.partition import NotRepeatable
from bothways.grad.tracing.traced import Moment, Strides

# So many are compiled for one graph; gradients or sizes that none of them fits go back through plain autograd.
MOST_BACKWARDS = 8


@dataclass(eq=False)
class CompiledBackward:
    """A compiled backward. ``holds`` tells for which sizes it is right, ``layouts`` gives the strides of its gradients.

    ``of`` says which gradients it gives and, where they are differentiated in turn, by which of its inputs. ``graph``
    is its graph, where it is known: one that comes from the cache has none until something asks.
    """

    holds: Callable[..., bool]
    layouts: Callable[..., Strides]
    autocast: Any
    again: bool
    of: Any
    run: Callable[..., Any]
    graph: torch.fx.GraphModule | None

    def fits(self, numbers: Sequence[int], moment: Moment) -> bool:
        """Whether it is right for a call with these sizes."""
        same = self.autocast == moment.autocast and self.again == moment.again
        return same and self.holds(*numbers) and self.layouts(*numbers) == moment.strides


class Backwards:
    """The backwards of one graph, the newest first."""

    def __init__(self) -> None:
        self._all: list[CompiledBackward] = []

    def fitting(self, numbers: Sequence[int], moment: Moment, of: Any) -> CompiledBackward | None:
        """The one for this call; raises when there are enough that are not."""
        alike = [backward for backward in self._all if backward.of == of]
        fitting = next((backward for backward in alike if backward.fits(numbers, moment)), None)
        if fitting is None and len(alike) >= MOST_BACKWARDS:
            raise NotRepeatable("the sizes or the layouts of the gradients keep changing what the backward does")
        return fitting

    def add(self, backward: CompiledBackward) -> None:
        self._all.insert(0, backward)


def after_numbers(numbers: tuple[int, ...], run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """A compiled backward that takes these numbers before what it is given, in the one list that it empties."""

    def call(values: list[Any]) -> Any:
        values[:0] = numbers
        return run(values)

    return call
