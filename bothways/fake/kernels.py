"""What operations without a rule return, by PyTorch's own word: its meta kernels, which know sizes and no data.

Those in Python run on thin tensors and take symbolic sizes as they are. Those in C++ run on tensors of the meta device;
most of them want plain numbers and say so. Only operations that make new tensors are asked about here, never views or
such as write to their arguments. What the kernels refuse raises ``NotThin``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.errors import Unsupported
from bothways.fake.layout import contiguous, same_sizes
from bothways.fake.rules import in_place, into
from bothways.fake.tensor import NotThin, Spec, ThinMemory, ThinTensor, fresh, offset, restride
from bothways.symbols import Undecided

# What goes through as it is: a number is asked for that is not there, or what a thin tensor is asked has no answer.
OWN_ERRORS = (NotThin, Unsupported, Undecided)


class KernelMode(torch_compat.DispatchMode):
    """Inside of it factories make thin tensors, and these are resized as meta kernels resize what they return."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.resize_.default:
            return _resized(*args, **(kwargs or {}))
        return ThinTensor.answer(func, args, kwargs or {})


def _resized(tensor: ThinTensor, size: Sequence[int], *, memory_format: Any = None) -> ThinTensor:
    shape = tuple(size)
    if offset(tensor) or memory_format not in (None, torch.contiguous_format):
        raise NotThin("a resized view")
    if same_sizes(shape, tuple(tensor.shape)):
        return tensor
    spec = Spec(shape, contiguous(shape), tensor.dtype)
    restride(tensor, fresh(spec, tensor.device))
    tensor.memory = ThinMemory(spec)
    return tensor


def by_kernel(operation: Any) -> Callable[..., Any] | None:
    """A rule that asks PyTorch's kernels about an operation; None where they would not tell all of it."""
    schema = torch_compat.schema_of(operation)
    if operation.name().startswith("aten::_foreach_"):  # whose kernels are those of each element, and say less
        return None
    if schema.is_mutable:
        return _writing(operation)
    known = ops.of(operation)
    if known.meta_is_wrong or known.aliases:
        return None
    function = torch_compat.shape_function(operation)
    if function is not None:
        return _in_python(operation, function)
    return _in_cpp(operation) if torch_compat.has_meta_kernel(operation) else None


def _writing(operation: Any) -> Callable[..., Any] | None:
    """For what writes: the form that makes a new tensor says what has to fit into the one that is written."""
    form = torch_compat.functional_form(operation)
    asked = None if form is None else by_kernel(form[0])
    if form is None or asked is None:
        return None
    return in_place(asked) if form[1] is None else into(asked, form[1])


def _in_python(operation: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(*args: Any, **kwargs: Any) -> Any:
        try:
            with KernelMode():
                # Lists of their own: some kernels put other tensors into those they are given.
                result = function(*_map_tensors(args, _itself), **_map_tensors(kwargs, _itself))
        except OWN_ERRORS:
            raise
        except Exception as error:  # whatever it says, PyTorch's fake tensors say it better
            raise NotThin(f"the meta kernel of {operation} refuses its arguments: {error}") from error
        return _map_tensors(result, _of_thin)

    return rule


def _in_cpp(operation: Any) -> Callable[..., Any]:
    def rule(*args: Any, **kwargs: Any) -> Any:
        if not any(map(_holds_tensor, (*args, *kwargs.values()))):
            raise NotThin(f"what makes tensors from numbers would make real ones: {operation}")
        with torch_compat.no_modes():
            try:
                result = operation(*_map_tensors(args, _on_meta), **_map_tensors(kwargs, _on_meta))
            except Exception as error:  # not with what it was given: a storage without memory cannot be shown
                raise NotThin(f"the meta kernel of {operation} refuses its arguments: {error}") from error
        return _map_tensors(result, _of_meta)

    return rule


def _holds_tensor(tree: Any) -> bool:
    return any(map(_holds_tensor, tree)) if isinstance(tree, (list, tuple)) else isinstance(tree, torch.Tensor)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


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
