"""PyTorch's entry points for tracing and differentiating a function, with PyTorch's signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from bothways.api.dropin.facades import for_programs, theirs
from bothways.backends import aot
from bothways.grad.tracing.trace import Decompositions, trace
from bothways.torch_compat import tree_flatten, tree_unflatten

PROXY_TENSOR = "torch.fx.experimental.proxy_tensor"
AOT_AUTOGRAD = "torch._functorch.aot_autograd"

Compiler = Callable[..., Callable[..., Any]]  # of a graph and its inputs


@for_programs(PROXY_TENSOR)
def make_fx(
    f: Callable[..., Any],
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None,
    tracing_mode: str = "real",
    *args: Any,
    **settings: Any,
) -> Callable[..., torch.fx.GraphModule]:
    """``make_fx``: ``trace`` for sizes that stay as they are; symbolic ones and other settings are PyTorch's own."""
    if tracing_mode == "symbolic" or args or settings:
        original = theirs("make_fx", PROXY_TENSOR)
        traced: Callable[..., torch.fx.GraphModule] = original(f, decomposition_table, tracing_mode, *args, **settings)
        return traced
    return trace(f, decompositions=decomposition_table)


@for_programs(AOT_AUTOGRAD)
def aot_module_simplified(
    mod: torch.nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Any = None,
    decompositions: Decompositions | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """``aot_module_simplified``: the module's forward and backward graphs, compiled, as a function of ``args``.

    Parameters and buffers are inputs of the graphs, before the arguments. What else PyTorch takes steers its own
    partitioner and caches.
    """
    state = {**dict(mod.named_parameters(remove_duplicate=False)), **dict(mod.named_buffers(remove_duplicate=False))}
    if inference_compiler is not None and not _wants_gradient([*state.values(), *args]):
        fw_compiler = inference_compiler
    backend = aot(fw_compiler=fw_compiler, bw_compiler=bw_compiler, decompositions=decompositions)
    if isinstance(mod, torch.fx.GraphModule) and not state:
        return backend(mod, list(args))
    structure: list[Any] = []

    def flat(*values: Any) -> tuple[Any, ...]:
        held = dict(zip(state, values[: len(state)], strict=True))
        outputs, layout = tree_flatten(torch.func.functional_call(mod, held, values[len(state) :]))
        structure[:] = [layout]
        return tuple(outputs)

    run = backend(_as_graph(flat, len(state) + len(args)), [*state.values(), *args])

    def forward(*values: Any) -> Any:
        outputs = run(*state.values(), *values)
        return tree_unflatten(outputs, structure[0])

    return forward


def _wants_gradient(values: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in values)


def _as_graph(function: Callable[..., Any], count: int) -> torch.fx.GraphModule:
    """A graph of one node that calls the function."""
    graph = torch.fx.Graph()
    inputs = tuple(graph.placeholder(f"arg{index}") for index in range(count))
    graph.output(graph.call_function(function, inputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)
