"""What autograd runs for a custom function whose bodies are graphs: its ``forward`` and its ``backward``.

A graph takes a context, which it does not read, and tensors; all that the user's context was told is done here. Capture
looks into these functions, so that a backward which is captured as a whole has the operations of the graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from bothways import torch_compat
from bothways.runtime.nodes import Reads


@dataclass(eq=False)
class FunctionFacts:
    """What the context of a custom function was told, and what its arguments were.

    ``mask`` says which of the arguments are tensors; other tensors that the bodies read are no arguments, and have no
    gradients. ``saved`` are the places, among the values that the backward needs, of those that the context saved: they
    are checked for changes, and freed after a backward. The others are held as they are. ``fixed`` are results without
    gradients. ``opaque`` and ``reads`` are the node's.
    """

    cls: Any
    mask: tuple[bool, ...]
    fixed: tuple[int, ...]
    saved: tuple[int, ...]
    held: tuple[int, ...]
    opaque: bool = False
    reads: Reads = field(default_factory=Reads)

    @property
    def tensor_count(self) -> int:
        return sum(self.mask)


Run = Callable[..., Any]


def plain_bodies(facts: FunctionFacts, run_forward: Run, run_backward: Run) -> dict[str, Any]:
    """Bodies for a function that at most saves tensors."""

    def forward(ctx: Any, *tensors: Any) -> Any:
        results, kept = run_forward(None, *tensors)
        if kept:
            ctx.save_for_backward(*kept)
        return results

    def backward(ctx: Any, *gradients: Any) -> Any:
        return run_backward(None, *gradients, *ctx.saved_tensors)

    def backward_alone(ctx: Any, *gradients: Any) -> Any:
        return run_backward(None, *gradients)

    return {"forward": staticmethod(forward), "backward": staticmethod(backward if facts.saved else backward_alone)}


def full_bodies(facts: FunctionFacts, run_forward: Run, run_backward: Run) -> dict[str, Any]:
    """Bodies for a function that holds tensors without saving them, reads others, or has results without gradients."""
    places = (*facts.saved, *facts.held)

    def forward(ctx: Any, *arguments: Any) -> Any:
        *tensors, others = arguments
        results, kept = run_forward(None, *tensors, *others)
        if facts.saved:
            ctx.save_for_backward(*(kept[place] for place in facts.saved))
        if facts.held:
            ctx.held = [kept[place] for place in facts.held]
        if facts.fixed:
            every = results if isinstance(results, tuple) else (results,)
            ctx.mark_non_differentiable(*(every[place] for place in facts.fixed))
        return results

    def backward(ctx: Any, *gradients: Any) -> Any:
        kept: list[Any] = [None] * len(places)
        values = (*(ctx.saved_tensors if facts.saved else ()), *(ctx.held if facts.held else ()))
        for place, value in zip(places, values, strict=True):
            kept[place] = value
        return *run_backward(None, *gradients, *kept), None

    return {"forward": staticmethod(forward), "backward": staticmethod(backward)}


def spelled_runs(fwd: Any, bwd: Any, without_spelling: Callable[[Any], Any]) -> tuple[Run, Run]:
    """What runs the modules of a function that is spelled out, which turn gradients off and on again."""

    def forward(*values: Any) -> Any:
        return fwd.forward(*values)

    def backward(*values: Any) -> Any:
        if torch.is_grad_enabled():  # whether it is differentiated is not for the body to say
            return without_spelling(bwd).forward(*values)
        try:
            return bwd.forward(*values)
        finally:
            torch_compat.set_grad_enabled(False)

    return forward, backward
