"""PyTorch's own kernels for shapes, the operations by name, and what an operation takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._C as _C
import torch._decomp as _decomp
import torch._meta_registrations as _meta_registrations


def shape_function(operation: Any) -> Callable[..., Any] | None:
    """PyTorch's own Python for what an operation returns: a meta kernel, or the operation written in other ones."""
    function = getattr(operation, "prim_meta_impl", None)
    for kind in ("meta", "post_autograd", "pre_autograd"):
        function = function or _decomp.global_decomposition_table[kind].get(operation)
    return None if function is None or (_asks_for_device(function) and not _devices_are_told()) else function


def _asks_for_device(function: Any) -> bool:
    """Whether a meta kernel differs from device to device."""
    inner = getattr(function, "__wrapped__", function)
    return "device_hint" in getattr(getattr(inner, "__code__", None), "co_names", ())


@functools.cache
def _devices_are_told() -> bool:
    """Whether meta kernels look at a tensor's device; in older versions only at that of PyTorch's own fakes."""
    return _meta_registrations.device_hint(torch.empty(0, device="cpu")) == "cpu"


def functional_form(operation: Any) -> tuple[Any, str | None] | None:
    """The operation that makes a new tensor where this one writes to its first argument, or to one that is named."""
    namespace, _, full = operation.name().partition("::")
    name, _, overload = full.partition(".")
    schema = operation._schema
    written = [argument for argument in schema.arguments if argument.alias_info is not None]
    if namespace != "aten" or len(written) != 1 or len(schema.returns) != 1:
        return None
    target = written[0].name if written[0].is_out else None
    if target is not None:
        wanted = f"{name}.{overload.removesuffix('out').rstrip('_')}"
    elif name.endswith("_") and schema.arguments[0] is not None and schema.arguments[0].alias_info is not None:
        wanted = f"{name[:-1]}.{overload}"
    else:
        return None
    packet, _, chosen = wanted.partition(".")
    form = getattr(getattr(torch.ops.aten, packet, None), chosen or "default", None)
    if form is None or form._schema.is_mutable:
        return None
    kept = [argument.name for argument in schema.arguments if argument.name != target]
    return (form, target) if kept == [argument.name for argument in form._schema.arguments] else None


def schema_of(target: Any) -> Any:
    """What an overload takes and returns; None for whatever is no overload."""
    return getattr(target, "_schema", None)


def operation_name(target: Any) -> str | None:
    """What an overload's operation is called; None for whatever is no overload and does not say."""
    name: str | None = getattr(target, "_opname", None)
    return name


def aten(name: str) -> Any:
    """An operation by its name."""
    return getattr(torch.ops.aten, name).default


def recurrent(name: str) -> Callable[..., Any]:
    """The function behind a recurrent layer."""
    function: Callable[..., Any] = getattr(torch._VF, name)
    return function


def recurrent_itself(name: str) -> Callable[..., Any]:
    """The same, whatever is in its place at the moment."""
    function: Callable[..., Any] = getattr(torch._C._VariableFunctions, name)
    return function


def has_symbolic_sizes(tensor: torch.Tensor) -> bool:
    answer: bool = tensor._has_symbolic_sizes_strides
    return answer


def has_meta_kernel(operation: Any) -> bool:
    name = operation.name()
    return _C._dispatch_has_kernel(name) and _C._dispatch_has_computed_kernel_for_dispatch_key(name, "Meta")


def is_plain_overload(target: Any) -> bool:
    """Whether something is an operation of the dispatcher's, whose arguments are tensors and numbers."""
    return type(target) is torch._ops.OpOverload


def form_in_place(target: Any) -> Any:
    """The overload of the same name that changes its first argument; None if there is none."""
    namespace, family, overload = str(target).split(".")
    return getattr(getattr(getattr(torch.ops, namespace), f"{family}_", None), overload, None)


_overloads: dict[int, Any] = {}  # by the id of the function that was given for each; overloads live as long as Python


def function_of_overload(target: Any) -> Callable[..., Any]:
    """What an overload calls, in C++, with the arguments it is given."""
    function: Callable[..., Any] = target._op
    _overloads[id(function)] = target
    return function


def overload_of(function: Any) -> Any | None:
    """The overload whose function this is."""
    return _overloads.get(id(function))


def tensor_places(target: Any) -> tuple[int, ...]:
    """Which arguments of an operation are tensors."""
    return tuple(place for place, argument in enumerate(target._schema.arguments) if str(argument.type) == "Tensor")


def keyword_names(target: Any) -> frozenset[str]:
    """Which arguments of an operation are given by name only."""
    return frozenset(argument.name for argument in target._schema.arguments if argument.kwarg_only)


def current_raw_stream(device: int) -> int:
    """The address of the stream that a GPU's operations run on now, in this thread."""
    address: int = _C._cuda_getCurrentRawStream(device)
    return address
