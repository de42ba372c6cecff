"""What operations without a rule return, by PyTorch's own word: its meta kernels, which know sizes and no data.

Those in Python run on thin tensors and take symbolic sizes as they are. Those in C++ run on tensors of the meta device;
most of them want plain numbers and say so. Only operations that make new tensors are asked about here, never views or
such as write to their arguments. What the kernels refuse raises ``NotThin``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bothways import torch_compat
from bothways.errors import Unsupported
from bothways.fake.tensor import NotThin, Spec, ThinTensor, offset
from bothways.symbols import Undecided

# Where PyTorch's kernels for shapes are wrong about what it does itself.
MISTAKEN: frozenset[str] = frozenset()

# What goes through as it is: a number is asked for that nobody has, or what a thin tensor is asked has no answer.
OWN_ERRORS = (NotThin, Unsupported, Undecided)


def by_kernel(operation: Any) -> Callable[..., Any] | None:
    """A rule that asks PyTorch's kernels about an operation; None where they would not tell all of it."""
    schema = operation._schema
    if schema.is_mutable or operation.name() in MISTAKEN or any(one.alias_info is not None for one in schema.returns):
        return None
    function = torch_compat.shape_function(operation)
    if function is not None:
        return _in_python(operation, function)
    return _in_cpp(operation) if torch_compat.has_meta_kernel(operation) else None


def _in_python(operation: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(*args: Any, **kwargs: Any) -> Any:
        try:
            with ThinTensor.fake_mode:
                result = function(*args, **kwargs)
        except OWN_ERRORS:
            raise
        except Exception as error:  # whatever it says, PyTorch's fake tensors say it better
            raise NotThin(f"the meta kernel of {operation} refuses {args}, {kwargs}") from error
        return _map_tensors(result, _of_thin)

    return rule


def _in_cpp(operation: Any) -> Callable[..., Any]:
    def rule(*args: Any, **kwargs: Any) -> Any:
        with torch_compat.no_modes():
            try:
                result = operation(*_map_tensors(args, _on_meta), **_map_tensors(kwargs, _on_meta))
            except Exception as error:
                raise NotThin(f"the meta kernel of {operation} refuses {args}, {kwargs}") from error
        return _map_tensors(result, _of_meta)

    return rule


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) is not ThinTensor or offset(tensor):
        raise NotThin("a tensor in the middle of its memory")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _of_meta(tensor: torch.Tensor) -> Spec:
    if not torch_compat.is_strided(tensor):
        raise NotThin("a result of a special layout")
    return Spec(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _of_thin(tensor: torch.Tensor) -> Spec:
    """The tensor as one of its own: a kernel for shapes may give back an argument, or a part of one."""
    if type(tensor) is not ThinTensor:
        raise NotThin("a constant of a meta kernel")
    return Spec(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _map_tensors(tree: Any, convert: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(tree, torch.Tensor):
        return convert(tree)
    if isinstance(tree, (list, tuple)):
        return (list if isinstance(tree, list) else tuple)(_map_tensors(item, convert) for item in tree)
    if isinstance(tree, dict):
        return {name: _map_tensors(item, convert) for name, item in tree.items()}
    return tree
