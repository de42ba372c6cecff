"""``torch.compile(m, backend="bothways")``: our gradients and kernels behind PyTorch's own capture.

For places where people can only set a string. PyTorch finds this by its entry point ``torch_dynamo_backends``; it has
captured the graph already, and its guards decide which calls come here. A graph that it made for all sizes, or that
holds what our differentiator does not take, is captured once more by ours, which makes programs for what it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.api.compile import compile
from bothways.backends.aot import Lowering, differentiated
from bothways.backends.registry import DEFAULT_BACKEND, lookup_backend
from bothways.errors import KernelWarning


def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """What PyTorch calls for each graph it has captured; ``mode`` and ``options`` steer PyTorch's own compilers."""
    lowering = lookup_backend(DEFAULT_BACKEND)
    assert isinstance(lowering, Lowering)
    if _is_plain(graph, example_inputs):
        try:
            with torch_compat.without_function_modes():
                return differentiated(graph, list(example_inputs), lowering)
        except KernelWarning:  # the user wants warnings to be errors
            raise
        except Exception:  # what its capture knows and ours does not: we look at the code instead
            pass
    # A module of its own: the forward of the given one may be made when it is first called.
    compiled: Callable[..., Any] = compile(torch.fx.GraphModule(graph, graph.graph).forward)
    return compiled


def _is_plain(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph was made for tensors of these very sizes, and calls nothing but operations and functions."""
    tensors = all(isinstance(value, torch.Tensor) and not torch_compat.is_fake(value) for value in inputs)
    return tensors and not any(node.op in ("call_module", "get_attr") for node in graph.graph.nodes)
