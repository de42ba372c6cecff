"""The formulas of autograd's own nodes as functions that a graph can hold: one node of a graph each.

They are C++ and take what a node has saved; on thin tensors they run operation by operation, so compilers of graphs
see what they are made of.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from bothways.node_facts import in_graphs
from bothways.runtime.acts import act
from bothways.runtime.marks import Mark, mark
from bothways.runtime.nodes import refuse_stand_ins
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


@in_graphs(opaque=True, has_effects=True)
def cpp_hook(hook: int, grad: Any) -> Any:
    """A hook that lives in C++, ``retain_grad`` for one; it is known by its number while the engine waits."""
    refuse_stand_ins(cpp_hook)
    act()
    return None if grad is None else backward_engine.run_cpp_hook(hook, grad)



def own_copy(leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """A gradient with memory of its own, laid out as the leaf is where that has neither gaps nor overlaps.

    One operation of a graph: how a gradient lies is not for captured code to ask.
    """
    if grad.layout != torch.strided or grad.stride() == leaf.stride() or not is_dense(leaf):
        return grad.clone()
    if leaf.is_contiguous():
        return grad.clone(memory_format=torch.contiguous_format)
    copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=grad.dtype, device=grad.device)
    return copy.copy_(grad)


mark(own_copy, Mark.IN_GRAPH)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory, in some order of the dimensions."""
    expected = 1
    for step, count in sorted((step, count) for step, count in zip(tensor.stride(), tensor.shape, strict=True)):
        if count != 1:
            if step != expected:
                return False
            expected *= count
    return True
