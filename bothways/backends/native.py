"""The ``native`` backend: forward and backward graphs become fused kernels, built by the system's C compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from bothways.backends.aot import aot, run_as_is
from bothways.lower import compile_graph


def compile_kernels(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The graph as kernels where its tensors are on the CPU, as ATen calls elsewhere."""
    if any(tensor.device.type != "cpu" for tensor in inputs):
        return run_as_is(graph, inputs)
    return compile_graph(graph, inputs)


native = aot(fw_compiler=compile_kernels)
native.__name__ = "native"
