"""Code that is looked at on the side, by a tracer of its own, without becoming part of the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bothways import torch_compat

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def fork(tracer: Tracer) -> Tracer:
    side = tracer.fork()
    side.effects.follow(tracer.effects)
    return side


@contextmanager
def undone(side: Tracer, tracer: Tracer, *, grad_enabled: bool) -> Iterator[None]:
    """Leave the contexts that code had entered when looking at it ended early; gradients are then on or off as said."""
    try:
        yield
    finally:
        for context in reversed(side.torch_state.open_contexts):
            if context not in tracer.torch_state.open_contexts:
                context.leave()
        for setting in reversed(side.torch_state.changed_settings):
            setting.leave()
        torch_compat.set_grad_enabled(grad_enabled)
