"""The formulas of autograd's own nodes as functions that a graph can hold: one node of a graph each.

They are C++ and take what a node has saved; on thin tensors they run operation by operation, so compilers of graphs
see what they are made of.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from bothways.runtime.marks import Mark, mark
from bothways.torch_compat import backward_engine


@functools.cache
def formula(name: str) -> Callable[..., Any]:
    """The formula of a kind of node, as a function that capture takes for one operation."""
    bound = backward_engine.FORMULAS[name]

    def run(grads: Any, *args: Any) -> Any:
        return bound(grads, *args)

    run.__name__ = run.__qualname__ = re.sub(r"\W+", "_", name)
    mark(run, Mark.IN_GRAPH)
    return run


def convert(grads: Any, wanted: Any) -> Any:
    """The engine's own check of the gradients that a node gave: it sums, casts, or raises."""
    return backward_engine.FORMULAS["validate_outputs"](grads, wanted)


mark(convert, Mark.IN_GRAPH)


def cpp_hook(hook: int, grad: Any) -> Any:
    """A hook that lives in C++, ``retain_grad`` for one; it is known by its number while the engine waits."""
    return None if grad is None else backward_engine.run_cpp_hook(hook, grad)


cpp_hook.opaque = cpp_hook.has_effects = True  # type: ignore[attr-defined]
