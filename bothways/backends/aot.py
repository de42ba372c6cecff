"""Backends that get forward and backward graphs of ATen operations instead of the captured graph.

``aot(fw_compiler=…, bw_compiler=…)`` makes one from two functions that compile such graphs; ``aot_eager`` runs
them as they are. A graph is cut where people outside look at what autograd does inside; a part the differentiator
does not express runs as it was captured, with PyTorch's autograd.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad import differentiate, sized, twins  # noqa: F401  # what differentiate needs later is loaded now
from bothways.grad.facts import Memo
from bothways.grad.joint import NotDifferentiable
from bothways.grad.origins import noting_origins
from bothways.grad.overlaps import writes_through
from bothways.grad.sizes import sizes_of
from bothways.grad.split import makes_leaf, split, turns_grad_on
from bothways.runtime.nodes import ApplyFunction
from bothways.symbols import Undecided

_FORWARD = re.compile(r"(\n+)def forward\(self(?:, )?(.*?)\):\n(.*)", re.DOTALL)

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
    """The graph itself, called without the machinery of ``nn.Module``."""
    return graph.forward


def run_and_forget(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The graph as a function of one list, which it empties, so that each input is freed when it was last read.

    Nobody can let go of an argument while the function it was passed to runs, but everybody of what was in a list.
    ``_boxed_call`` is what PyTorch's compilers, too, call such functions by.
    """
    method: Any = graph.forward
    before, names, body = _FORWARD.fullmatch(graph.code).groups()  # type: ignore[union-attr]
    given = "inputs"
    while re.search(rf"\b{given}\b", names + body):
        given += "_"
    # One empty line less, one line more: the others keep their numbers, and tracebacks show the graph's own code.
    source = f"{before[1:]}def forward(self, {given}):\n    [{names}] = {given}; {given}.clear()\n{body}"
    scope = dict(method.__func__.__globals__)
    exec(compile(source, method.__code__.co_filename, "exec"), scope)
    run = functools.partial(scope["forward"], graph)
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


aot_eager = aot(fw_compiler=run_as_is, bw_compiler=run_and_forget)
aot_eager.__name__ = "aot_eager"
