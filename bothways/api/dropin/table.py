"""What the drop-in replaces: one row for each name programs import from PyTorch, and what they get instead.

The objects that several parties share (exceptions, configuration, counters) are linked instead of replaced,
and functions that capture only has to recognise are marked. Names without a row work as they are:
what ``disable`` returns is never looked into, and the counting backends of ``torch._dynamo.testing`` are
backends like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from bothways.api.dropin import backward, compilers, facades, regions, tracing, trainers, translate
from bothways.api.dropin.changes import Change
from bothways.grad import trace_wrapped
from bothways.runtime.marks import Mark


@dataclass(frozen=True)
class DropInRow:
    """``module.name`` becomes ``ours``; where ours is a Mark, the function stays and is marked.

    A name that this version of PyTorch has not is skipped unless it is required.
    """

    module: str
    name: str
    ours: Any
    required: bool = False


ROWS: tuple[DropInRow, ...] = (
    DropInRow("torch", "compile", facades.compile, required=True),
    DropInRow("torch.nn", "Module.compile", facades.compile_in_place, required=True),
    # The public namespace.
    DropInRow("torch.compiler", "compile", facades.compile, required=True),
    DropInRow("torch.compiler", "reset", facades.reset, required=True),
    DropInRow("torch.compiler", "set_stance", facades.set_stance),
    DropInRow("torch.compiler", "list_backends", facades.list_backends, required=True),
    DropInRow("torch.compiler", "allow_in_graph", facades.allow_in_graph, required=True),
    DropInRow("torch.compiler", "assume_constant_result", facades.assume_constant_result, required=True),
    DropInRow("torch.compiler", "is_compiling", Mark.IS_COMPILING, required=True),
    DropInRow("torch.compiler", "is_dynamo_compiling", Mark.IS_COMPILING),
    DropInRow("torch._utils", "is_compiling", Mark.IS_COMPILING),
    DropInRow("torch.compiler", "cudagraph_mark_step_begin", facades.nothing),
    DropInRow("torch.compiler", "set_enable_guard_collectives", facades.nothing),
    DropInRow("torch.compiler", "nested_compile_region", regions.nested_compile_region),
    DropInRow("torch.compiler", "substitute_in_graph", regions.substitute_in_graph),
    DropInRow("torch.compiler", "save_cache_artifacts", regions.save_cache_artifacts),
    DropInRow("torch.compiler", "load_cache_artifacts", regions.load_cache_artifacts),
    # What programs import from the compiler itself: compiling and looking at the result,
    DropInRow("torch._dynamo", "optimize", facades.optimize),
    DropInRow("torch._dynamo", "optimize_assert", facades.optimize_assert),
    DropInRow("torch._dynamo", "run", facades.run),
    DropInRow("torch._dynamo", "explain", facades.explain),
    DropInRow("torch._dynamo", "reset", facades.reset),
    DropInRow("torch._dynamo", "set_stance", facades.set_stance),
    DropInRow("torch._dynamo", "OptimizedModule", facades.OptimizedModule),
    # marks on functions and on tensors,
    DropInRow("torch._dynamo", "allow_in_graph", facades.allow_in_graph),
    DropInRow("torch._dynamo", "disallow_in_graph", facades.disallow_in_graph),
    DropInRow("torch._dynamo", "forbid_in_graph", facades.forbid_in_graph),
    DropInRow("torch._dynamo", "assume_constant_result", facades.assume_constant_result),
    DropInRow("torch._dynamo", "nonstrict_trace", regions.nonstrict_trace),  # which that of torch.compiler calls
    DropInRow("torch._dynamo", "graph_break", Mark.GRAPH_BREAK),
    DropInRow("torch._dynamo", "is_compiling", Mark.IS_COMPILING),
    DropInRow("torch._dynamo", "mark_dynamic", facades.mark_dynamic),
    DropInRow("torch._dynamo", "maybe_mark_dynamic", facades.maybe_mark_dynamic),
    DropInRow("torch._dynamo", "mark_static", facades.mark_static),
    DropInRow("torch._dynamo.decorators", "mark_dynamic", facades.mark_dynamic),
    DropInRow("torch._dynamo.decorators", "maybe_mark_dynamic", facades.maybe_mark_dynamic),
    DropInRow("torch._dynamo.decorators", "mark_unbacked", facades.mark_unbacked),
    DropInRow("torch._dynamo.decorators", "mark_static", facades.mark_static),
    # and backends. Those registered with PyTorch stay there, and are found there.
    DropInRow("torch._dynamo", "list_backends", facades.list_backends),
    DropInRow("torch._dynamo", "lookup_backend", facades.lookup_backend),
    DropInRow("torch._dynamo.backends.registry", "list_backends", facades.list_backends),
    DropInRow("torch._dynamo.backends.registry", "lookup_backend", facades.lookup_backend),
    # Tracing and differentiating without capturing.
    DropInRow("torch.fx.experimental.proxy_tensor", "make_fx", tracing.make_fx),
    DropInRow("torch._functorch.aot_autograd", "aot_module_simplified", tracing.aot_module_simplified),
    DropInRow("functorch.compile", "aot_module_simplified", tracing.aot_module_simplified),
    DropInRow("torch._dynamo._trace_wrapped_higher_order_op", "trace_wrapped", trace_wrapped),
    # What backends call to have the rest of the work done.
    DropInRow("torch._dynamo.backends.common", "aot_autograd", compilers.aot_autograd),
    DropInRow("torch._inductor", "compile", compilers.compile),
    DropInRow("torch._inductor.compile_fx", "compile_fx", compilers.compile_fx),
    DropInRow("torch._inductor.compile_fx", "compile_fx_inner", compilers.compile_fx_inner),
    # Whole backwards.
    DropInRow("torch._dynamo.compiled_autograd", "_enable", backward.enable),
    DropInRow("torch._dynamo.compiled_autograd", "_disable", backward.disable),
    DropInRow("torch._dynamo.compiled_autograd", "reset", backward.reset),
    # Tests written for the compiler call these by the names their modules imported.
    DropInRow("torch._dynamo.testing", "optimize_assert", facades.optimize_assert),
    DropInRow("torch._dynamo.testing", "reset", facades.reset),
    DropInRow("torch._dynamo.test_case", "reset", facades.reset),
)

# Modules whose objects are shared: the function takes the module and gives the changes that link it to ours.
LINKS: dict[str, Callable[[ModuleType], Iterator[Change]]] = {
    "torch._dynamo.compiled_autograd": backward.add_older_name,
    "torch._dynamo.config": translate.mirror_config,
    "torch._dynamo.exc": translate.adopt_errors,
    "torch._dynamo.utils": translate.share_counters,
    "torch._dynamo._trace_wrapped_higher_order_op": translate.name_wrapped_calls,
    "accelerate.utils.dataclasses": trainers.name_backend,
}
