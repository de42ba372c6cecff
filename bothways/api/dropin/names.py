"""Names that mean the same thing on both sides: PyTorch's word on the left, ours on the right.

Backends, configuration flags and exceptions are translated by these three tables and nowhere else. Adding a
translation is adding a row; a name that is in no table keeps PyTorch's meaning.
"""

from __future__ import annotations

# torch.compile(backend=...) -> bothways.compile(backend=...). Names in neither table nor registry of ours are
# looked up among the backends registered with PyTorch, which take the same (graph, example_inputs).
BACKENDS: dict[str, str] = {
    "inductor": "native",
    "native": "native",
    "bothways": "native",
    "cudagraphs": "native",
    "eager": "eager",
    "eager_noexcept": "eager",
    "aot_eager": "aot_eager",
    "aot_eager_default_partitioner": "aot_eager",
    "aot_eager_decomp_partition": "aot_eager",
    "aot_eager_decomp_partition_with_mode": "aot_eager",
    "aot_eager_decomp_partition_crossref": "aot_eager",
}

# torch._dynamo.config.<name> -> bothways.config.<name>. Written to both, read from ours.
CONFIG: dict[str, str] = {
    "recompile_limit": "recompile_limit",
    "error_on_recompile": "error_on_recompile",
    "suppress_errors": "suppress_errors",
    "automatic_dynamic_shapes": "automatic_dynamic",
    "assume_static_by_default": "assume_static",
    "force_parameter_static_shapes": "static_parameters",
    "capture_scalar_outputs": "numbers_from_data",
    "capture_dynamic_output_shape_ops": "sizes_from_data",
}

# bothways.errors.<name> -> the classes of torch._dynamo.exc whose handlers must see it. Where PyTorch tells
# apart what is one error here, a handler for any of them does.
ERRORS: dict[str, tuple[str, ...]] = {
    "Unsupported": ("Unsupported", "UserError", "TorchRuntimeError", "UncapturedHigherOrderOpError"),
    "InvalidBackend": ("InvalidBackend",),
    "InvalidOption": ("TorchDynamoException",),
    "BackendFailed": ("BackendCompilerFailed",),
    "RecompileError": ("RecompileError",),
    "InternalError": ("InternalTorchDynamoError",),
}
