"""Backends that get forward and backward graphs of ATen operations instead of the captured graph.

``aot(fw_compiler=…, bw_compiler=…)`` makes one from two functions that compile such graphs; ``aot_eager`` runs
them as they are. A graph is cut where people outside look at what autograd does inside; a part the differentiator
does not express runs as it was captured, with PyTorch's autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.config import config
from bothways.grad import differentiate, sized  # noqa: F401  # what differentiate needs later is loaded now
from bothways.grad.facts import Memo
from bothways.grad.joint import NotDifferentiable
from bothways.grad.origins import noting_origins
from bothways.grad.overlaps import writes_through
from bothways.grad.sizes import sizes_of
from bothways.grad.split import makes_leaf, split, turns_grad_on
from bothways.lower.aten_calls import function_of
from bothways.runtime.nodes import ApplyFunction
from bothways.symbols import Undecided

GraphCompiler = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]
# What is remembered of a captured graph, given inputs and outlines of its outputs.
Remember = Callable[[torch.fx.GraphModule, list[torch.Tensor], list[torch.Tensor | None]], Memo | None]


def aot(
    *, fw_compiler: GraphCompiler, bw_compiler: GraphCompiler | None = None, remember: Remember | None = None
) -> Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]:
    """A backend from compilers of forward and backward graphs; one compiler serves for both by default.

    ``remember`` finds what other processes have compiled a captured graph to.
    """
    for name, compiler in (("fw_compiler", fw_compiler), ("bw_compiler", bw_compiler)):
        if not callable(compiler) and not (compiler is None and name == "bw_compiler"):
            raise TypeError(f"{name}={compiler!r}: a function of a graph and its inputs is expected")

    def compile_whole(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        sizes = None
        if not all(isinstance(value, torch.Tensor) for value in inputs):
            found = sizes_of(graph, inputs)
            if found is None:
                return graph.forward
            sizes, inputs = found
        refusals: tuple[type[Exception], ...] = (NotDifferentiable, Undecided, *torch_compat.fake_tensor_errors())
        try:
            reads = [node.target.reads for node in graph.graph.nodes if isinstance(node.target, ApplyFunction)]
            layouts = _layouts(graph.graph)
            memo = None if remember is None or sizes is not None else remember(graph, inputs, layouts)
            function = noting_origins(graph)
            return differentiate(function, inputs, fw_compiler, bw_compiler or fw_compiler, reads, layouts, memo, sizes)
        except refusals:
            return graph.forward

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        grad = torch.is_grad_enabled() and (
            any(getattr(value, "requires_grad", False) for value in inputs) or any(map(makes_leaf, graph.graph.nodes))
        )
        if not torch.is_grad_enabled() and any(map(turns_grad_on, graph.graph.nodes)):
            return graph.forward  # what it differentiates is known only inside
        if writes_through(graph.graph):
            return graph.forward
        chain = split(graph, compile_whole, grad=grad)
        return compile_whole(graph, inputs) if chain is None else chain.forward

    return backend


def _layouts(graph: torch.fx.Graph) -> list[torch.Tensor | None]:
    """Tensors laid out like the outputs of a captured graph."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    found = [node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None for node in output.args[0]]
    return [value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None for value in found]


def run_as_is(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The graph itself, without the machinery of ``nn.Module``."""
    return function_of(graph, takes_list=False)


def run_and_forget(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The graph as a function of one list, which it empties."""
    return function_of(graph, takes_list=True)


# (elements of the largest input, operations), as many elements as you like: our autograd node is Python, and costs what
# calling a few operations without autograd saves.
SMALL_WITH_GRADIENTS = ((1 << 62, 5),)

_differentiated = aot(fw_compiler=run_as_is, bw_compiler=run_and_forget)


def aot_eager(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Forward and backward graphs of ATen operations, run as they are; what is too small to gain stays as captured."""
    if is_small(graph, inputs, (), SMALL_WITH_GRADIENTS):
        forward: Callable[..., Any] = graph.forward
        return forward
    return _differentiated(graph, inputs)


# For graphs of at most so many elements (of the largest input): how many operations are few.
Limits = Sequence[tuple[int, int]]


def is_small(graph: torch.fx.GraphModule, inputs: list[Any], limits: Limits, with_gradients: Limits) -> bool:
    """Whether a captured graph is left as it is, since calling what it would be compiled to takes longer."""
    if config.kernels_for_small_graphs:
        return False
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    operations = sum(node.op.startswith("call") for node in graph.graph.nodes)
    elements = max((tensor.numel() for tensor in tensors), default=0)
    gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return any(
        elements <= most and operations <= count for most, count in (with_gradients if gradients else limits)
    )
