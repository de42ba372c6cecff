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
from bothways.grad import differentiate, sized  # noqa: F401  # what differentiate needs later is loaded now
from bothways.grad.facts import Memo
from bothways.grad.joint import NotDifferentiable
from bothways.grad.origins import noting_origins
from bothways.grad.overlaps import writes_through
from bothways.grad.sizes import sizes_of
from bothways.grad.split import makes_leaf, split, turns_grad_on
from bothways.runtime import generated
from bothways.runtime.nodes import ApplyFunction
from bothways.symbols import Undecided
from bothways.torch_compat.said import said

_FORWARD = re.compile(r"(\n+)def forward\(self(?:, )?(.*?)\):\n(.*)", re.DOTALL)

GraphCompiler = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]
# What is remembered of a captured graph, given inputs and outlines of its outputs.
Remember = Callable[[torch.fx.GraphModule, list[torch.Tensor], list[torch.Tensor | None]], Memo | None]


def aot(
    *,
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler | None = None,
    remember: Remember | None = None,
    turns_images: bool = False,
) -> Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]:
    """A backend from compilers of forward and backward graphs; one compiler serves for both by default.

    ``remember`` finds what other processes have compiled a captured graph to. With ``turns_images`` the images between
    convolutions lie as those like them best, which the results do not show.
    """
    for name, compiler in (("fw_compiler", fw_compiler), ("bw_compiler", bw_compiler)):
        if not callable(compiler) and not (compiler is None and name == "bw_compiler"):
            raise TypeError(f"{name}={compiler!r}: a function of a graph and its inputs is expected")

    def compile_whole(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        sizes = None
        if not all(isinstance(value, torch.Tensor) for value in inputs):
            found = sizes_of(graph, inputs)
            if found is None:
                return _as_captured(graph, "it takes what is neither a tensor nor a size")
            sizes, inputs = found
        refusals: tuple[type[Exception], ...] = (NotDifferentiable, Undecided, *torch_compat.fake_tensor_errors())
        try:
            reads = [node.target.reads for node in graph.graph.nodes if isinstance(node.target, ApplyFunction)]
            layouts = _layouts(graph.graph)
            memo = None if remember is None or sizes is not None else remember(graph, inputs, layouts)
            function, turns = noting_origins(graph), turns_images and not reads and not _lays_out(graph)
            return differentiate(
                function, inputs, fw_compiler, bw_compiler or fw_compiler, reads, layouts, memo, sizes, turns
            )
        except refusals as error:
            chain = split(graph, compile_whole, grad=_is_differentiated(graph, inputs), apart=True)
            if chain is not None:
                return chain.forward
            return _as_captured(graph, str(error) if isinstance(error, NotDifferentiable) else said(error))

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        if not torch.is_grad_enabled() and any(map(turns_grad_on, graph.graph.nodes)):
            return _as_captured(graph, "it turns gradients on inside")  # what it differentiates is known only there
        if writes_through(graph.graph):
            return _as_captured(graph, "it writes through a view whose elements share memory")
        chain = split(graph, compile_whole, grad=_is_differentiated(graph, inputs))
        return compile_whole(graph, inputs) if chain is None else chain.forward

    return backend


def _as_captured(graph: torch.fx.GraphModule, reason: str) -> Callable[..., Any]:
    """The graph itself, with PyTorch's autograd, and for people why."""
    generated.as_captured(graph, reason)
    forward: Callable[..., Any] = graph.forward
    return forward


def _is_differentiated(graph: torch.fx.GraphModule, inputs: list[Any]) -> bool:
    return torch.is_grad_enabled() and (
        any(getattr(value, "requires_grad", False) for value in inputs) or any(map(makes_leaf, graph.graph.nodes))
    )


def _layouts(graph: torch.fx.Graph) -> list[torch.Tensor | None]:
    """Tensors laid out like the outputs of a captured graph."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    found = [node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None for node in output.args[0]]
    return [value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None for value in found]


def _lays_out(graph: torch.fx.GraphModule) -> bool:
    """Whether the user says how images lie, which then is what everybody, random numbers included, goes by."""
    formats = (torch.channels_last, torch.channels_last_3d)
    modules = (module.graph for module in graph.modules() if isinstance(module, torch.fx.GraphModule))
    given = ((*node.args, *node.kwargs.values()) for each in modules for node in each.nodes)
    return any(isinstance(value, torch.memory_format) and value in formats for values in given for value in values)


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


def _said(name: str, compiler: GraphCompiler) -> GraphCompiler:
    """A compiler that leaves operations to ATen, and says so."""

    def compile(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        generated.as_aten(graph, "the backend is aot_eager", name)
        return compiler(graph, inputs)

    return compile


aot_eager = aot(fw_compiler=_said("forward", run_as_is), bw_compiler=_said("backward", run_and_forget))
aot_eager.__name__ = "aot_eager"
