"""Hooks that a caller puts on one of several results of a compiled graph.

The results are those of one autograd node, which the engine runs when it comes to any of them, and then calls the
hooks of all: with None for a result that no gradient came to. In eager such a result has a node of its own, which is
not run, and its hooks are not called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from bothways import torch_compat

Hook = Callable[[Any], Any]


class ResultHooks:
    """One hook that calls those of a tensor, as they are by then, if a gradient came to it."""

    def __init__(self, hooks: Mapping[int, Hook]) -> None:
        self.hooks = hooks

    def __call__(self, gradient: torch.Tensor | None) -> Any:
        changed = None
        for hook in list(self.hooks.values()):
            if gradient is None:
                # These count the nodes that run, and this one does.
                if torch_compat.counts_nodes(hook):
                    hook(None)
                continue
            result = hook(gradient)
            if result is not None:
                changed = gradient = result
        return changed

    def only(self) -> Hook | None:
        """The hook that it stands for where a gradient comes, if that is one."""
        hooks = list(self.hooks.values())
        return hooks[0] if len(hooks) == 1 else None

    def counts(self) -> bool:
        return any(map(torch_compat.counts_nodes, self.hooks.values()))


def register_hook_dict(node: Any, tensor: torch.Tensor) -> None:
    """What ``Tensor.register_hook`` calls for the first hook of a tensor, of its node."""
    node.is_hooked = True
    register = super(type(node), node)._register_hook_dict
    if node.graph.result_count < 2:
        register(tensor)
        return
    hooks = tensor._backward_hooks
    assert hooks is not None
    tensor._backward_hooks = {0: ResultHooks(hooks)}
    try:
        register(tensor)  # keeps the dictionary that the tensor has now
    finally:
        tensor._backward_hooks = hooks
