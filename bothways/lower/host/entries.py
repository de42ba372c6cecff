"""The fastest way into ATen that Python has, for each operation: methods and functions of PyTorch's own.

An overload called from Python goes through the schema, argument by argument (1 to 8 us); the methods and functions that
PyTorch generates in C++ parse the same arguments into the same call of the dispatcher in half of that. A row stands for
an overload whose binding gives the very same operation the very same arguments: the tests call both on the samples that
PyTorch has. What has no row is called by its overload, without the Python around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.ops import Binding, Home

HOMES: dict[Home, Any] = {
    Home.METHODS: torch_compat.TENSOR_METHODS,
    Home.FUNCTIONS: torch_compat.VARIABLE_FUNCTIONS,
    Home.NN_FUNCTIONS: torch_compat.NN_FUNCTIONS,
}


def strided_scatter(tensor: torch.Tensor, source: torch.Tensor, *layout: Any, **named: Any) -> torch.Tensor:
    """``as_strided_scatter``, which refuses a tensor with gaps that needs a gradient, also where none is computed."""
    return torch.as_strided_scatter(tensor.detach(), source, *layout, **named)


# Overload -> what is called in its place.
OURS: dict[Any, Callable[..., Any]] = {torch.ops.aten.as_strided_scatter.default: strided_scatter}


def asks_for_grad_mode(target: Any) -> bool:
    """Whether an operation may give something else where gradients will be wanted."""
    return not ops.of(target).ignores_grad_mode


def entry(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_tensor: Callable[[Any], bool]
) -> Callable[..., Any]:
    """What to call in the place of ``target`` with these arguments; ``is_tensor`` tells which of them are tensors."""
    if not torch_compat.is_plain_overload(target):
        function: Callable[..., Any] = target
        return function
    if target in OURS:
        return OURS[target]
    row = _row_of(target)
    if row is None or not all(is_tensor(args[place]) for place in row.tensors if place < len(args)):
        return direct(target)
    if row.known.takes_two and (len(args) != 2 or kwargs):
        return direct(target)
    if not row.keywords.issuperset(kwargs) or any(kwargs.get(keyword) is None for keyword in row.known.needs):
        return direct(target)
    return row.binding


@dataclass(frozen=True)
class _Row:
    """A binding, which of its arguments have to be tensors, and which are known by the same name."""

    binding: Callable[..., Any]
    known: Binding
    tensors: tuple[int, ...]
    keywords: frozenset[str]


@functools.cache
def _row_of(target: Any) -> _Row | None:
    operation = ops.of(target)
    known = operation.binding
    binding = None if known is None else getattr(HOMES[known.home], operation.name.partition(".")[0], None)
    if known is None or binding is None:
        return None
    tensors = (0,) if known.number_as_tensor else torch_compat.tensor_places(target)
    return _Row(binding, known, tensors, torch_compat.keyword_names(target))


def direct(target: Any) -> Callable[..., Any]:
    """The function in C++ that an overload calls."""
    function: Callable[..., Any] = torch_compat.function_of_overload(target)
    return function
