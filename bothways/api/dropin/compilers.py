"""What backends written for PyTorch call to have the rest of the work done, with PyTorch's signatures.

``aot_autograd`` differentiates a graph and gives the halves to the backend's own compilers; the others are PyTorch's
default backend, as a whole or for a graph that is differentiated already. Ours do the same work; arguments that steer
theirs have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from bothways.api.dropin.facades import for_programs, lookup_backend
from bothways.api.dropin.tracing import Compiler, aot_module_simplified
from bothways.backends.native import native
from bothways.grad.tracing.trace import Decompositions

COMMON = "torch._dynamo.backends.common"
INDUCTOR = "torch._inductor"
COMPILE_FX = "torch._inductor.compile_fx"


@for_programs(COMMON)
def aot_autograd(**settings: Any) -> Compiler:
    """``aot_autograd(fw_compiler=…, bw_compiler=…, …)``: a backend that is ``aot_module_simplified`` with these."""

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **extra: Any) -> Callable[..., Any]:
        decompositions = settings.get("decompositions")
        arguments = settings | {"decompositions": decompositions() if callable(decompositions) else decompositions}
        return aot_module_simplified(gm, example_inputs, **arguments)

    backend.__name__ = "compiler_fn"
    return backend


@for_programs(INDUCTOR)
def compile(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """``torch._inductor.compile``."""
    return _compiled(gm, example_inputs, None, None)


@for_programs(COMPILE_FX)
def compile_fx(
    model_: torch.fx.GraphModule,
    example_inputs_: Sequence[Any],
    inner_compile: Compiler | None = None,
    config_patches: dict[str, Any] | None = None,
    decompositions: Decompositions | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """``compile_fx``: our default backend, or the halves given to an ``inner_compile`` of the program's own."""
    return _compiled(model_, example_inputs_, inner_compile, decompositions)


def _compiled(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    inner_compile: Compiler | None,
    decompositions: Decompositions | None,
) -> Callable[..., Any]:
    if inner_compile is None or inner_compile is compile_fx_inner:
        run: Callable[..., Any] = lookup_backend("inductor")(gm, list(inputs))
        return run
    return aot_module_simplified(gm, inputs, inner_compile, decompositions=decompositions)


@for_programs(COMPILE_FX)
def compile_fx_inner(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """``compile_fx_inner``: a graph of ATen operations as a function that takes its inputs as one list."""
    return native.backward(gm, list(example_inputs))
