"""Backends that get forward and backward graphs of ATen operations instead of the captured graph.

``aot(fw_compiler=…, bw_compiler=…)`` makes one from two functions that compile such graphs; ``aot_eager`` runs
them as they are. A graph the differentiator does not express runs as it was captured, with PyTorch's autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad import differentiate
from bothways.grad.joint import NotDifferentiable

GraphCompiler = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]


def aot(
    *, fw_compiler: GraphCompiler, bw_compiler: GraphCompiler | None = None
) -> Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]:
    """A backend from compilers of forward and backward graphs; one compiler serves for both by default."""

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        if any(map(_goes_around_autograd, graph.graph.nodes)):
            return graph.forward
        refusals: tuple[type[Exception], ...] = (NotDifferentiable, *torch_compat.fake_tensor_errors())
        try:
            return differentiate(graph.forward, inputs, fw_compiler, bw_compiler or fw_compiler)
        except refusals:
            return graph.forward

    return backend


def _goes_around_autograd(node: torch.fx.Node) -> bool:
    """Whether the node runs somebody's Python in the backward, or reaches a tensor's data behind autograd's back."""
    return (
        "watched" in node.meta
        or getattr(node.target, "opaque", False)
        or (node.target is getattr and node.args[1] == "data")
    )


def run_as_is(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The graph itself, called without the machinery of ``nn.Module``."""
    return graph.forward


aot_eager = aot(fw_compiler=run_as_is)
aot_eager.__name__ = "aot_eager"
