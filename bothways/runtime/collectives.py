"""What processes tell each other, as nodes of a graph: collectives that run at once.

A node calls PyTorch's own function, in the order of the program and as often. Where it is traced, it is an operation
that makes a new tensor and is treated like one that draws random numbers: it is never left out, moved past another one,
or run a second time. A process group is a number in a graph, of which a guard sees to it that it means the same group.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from bothways import torch_compat
from bothways.node_facts import in_graphs
from bothways.runtime.nodes import refuse_stand_ins

DEFAULT = 0  # the number of the default process group, whichever that is

_counter = itertools.count(1)
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_groups: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def number_of(group: Any = None) -> int:
    """The number of a process group, the default one for None, which no other has had in this process; 0 where what it
    is asked for does not run at once, or not at all."""
    used = torch_compat.group_in_use(group)
    if used is None:
        return 0
    number = _numbers.get(used)
    if number is None:
        number = _numbers.setdefault(used, next(_counter))
        _groups[number] = used
    return number


def group_of(number: int) -> Any:
    """The process group with a number, as PyTorch's functions take it."""
    return None if number == DEFAULT else _groups[number]


@in_graphs(opaque=True, has_effects=True, traced=True)
def all_reduce_(tensor: torch.Tensor, reduction: str, group: int) -> torch.Tensor:
    if _is_traced(all_reduce_):
        return _become(tensor, operations().all_reduce(tensor, reduction, group))
    dist.all_reduce(tensor, _reduction(reduction), group_of(group))
    return tensor


@in_graphs(opaque=True, has_effects=True, traced=True)
def broadcast_(tensor: torch.Tensor, source: int, group: int) -> torch.Tensor:
    """``source`` is the process's rank among all."""
    if _is_traced(broadcast_):
        return _become(tensor, operations().broadcast(tensor, source, group))
    dist.broadcast(tensor, source, group_of(group))
    return tensor


@in_graphs(opaque=True, has_effects=True, traced=True)
def all_gather_(into: torch.Tensor, tensor: torch.Tensor, function: str, group: int) -> torch.Tensor:
    """``function`` is what PyTorch calls it."""
    if _is_traced(all_gather_):
        return _become(into, operations().all_gather(into, tensor, function, group))
    getattr(dist, function)(into, tensor, group_of(group))
    return into


@in_graphs(opaque=True, has_effects=True, traced=True)
def all_gather_list_(into: Sequence[torch.Tensor], tensor: torch.Tensor, group: int) -> list[torch.Tensor]:
    if _is_traced(all_gather_list_):
        new = operations().all_gather_list(list(into), tensor, group)
        return [_become(*pair) for pair in zip(into, new, strict=True)]
    dist.all_gather(list(into), tensor, group_of(group))
    return list(into)


@in_graphs(opaque=True, has_effects=True, traced=True)
def reduce_scatter_(
    into: torch.Tensor, tensor: torch.Tensor, function: str, reduction: str, group: int
) -> torch.Tensor:
    if _is_traced(reduce_scatter_):
        return _become(into, operations().reduce_scatter(into, tensor, function, reduction, group))
    getattr(dist, function)(into, tensor, _reduction(reduction), group_of(group))
    return into


@in_graphs(opaque=True, has_effects=True, traced=True)
def all_to_all_(
    into: torch.Tensor, tensor: torch.Tensor, into_sizes: list[int] | None, sizes: list[int] | None, group: int
) -> torch.Tensor:
    if _is_traced(all_to_all_):
        return _become(into, operations().all_to_all(into, tensor, into_sizes, sizes, group))
    dist.all_to_all_single(into, tensor, into_sizes, sizes, group_of(group))
    return into


@in_graphs(opaque=True, has_effects=True)
def wait_for_all(group: int) -> None:
    """A barrier, which stands between two graphs."""
    refuse_stand_ins(wait_for_all)
    dist.barrier(group_of(group))


def _reduction(name: str) -> Any:
    return getattr(dist.ReduceOp, name)


def _is_traced(what: Callable[..., Any]) -> bool:
    """Whether a graph is traced, where nothing may be told to other processes."""
    return torch_compat.dispatch_mode_depth() > 0


def _become(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Give a traced tensor another value, as collectives do: changes that they make are not counted."""
    if torch_compat.is_functional(tensor):
        torch_compat.replace_functional(tensor, value)
    else:
        tensor.data.copy_(value)
    return tensor


# The operations that stand in traced graphs: what they make, and how it is filled. Those in place take the place of
# the others where nothing reads the argument again.

_TRACED: dict[str, Callable[..., Any]] = {}


def _traced(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        _TRACED[schema] = function
        return function

    return note


@_traced("all_reduce(Tensor tensor, str reduction, int group) -> Tensor")
def _all_reduce(tensor: torch.Tensor, reduction: str, group: int) -> torch.Tensor:
    return all_reduce_(tensor.clone(), reduction, group)


@_traced("all_reduce_(Tensor(a!) tensor, str reduction, int group) -> Tensor(a!)")
def _all_reduce_in_place(tensor: torch.Tensor, reduction: str, group: int) -> torch.Tensor:
    return all_reduce_(tensor, reduction, group)


@_traced("broadcast(Tensor tensor, int source, int group) -> Tensor")
def _broadcast(tensor: torch.Tensor, source: int, group: int) -> torch.Tensor:
    return broadcast_(tensor.clone(), source, group)


@_traced("broadcast_(Tensor(a!) tensor, int source, int group) -> Tensor(a!)")
def _broadcast_in_place(tensor: torch.Tensor, source: int, group: int) -> torch.Tensor:
    return broadcast_(tensor, source, group)


@_traced("all_gather(Tensor into, Tensor tensor, str function, int group) -> Tensor")
def _all_gather(into: torch.Tensor, tensor: torch.Tensor, function: str, group: int) -> torch.Tensor:
    return all_gather_(torch.empty_like(into), tensor, function, group)


@_traced("all_gather_list(Tensor[] into, Tensor tensor, int group) -> Tensor[]")
def _all_gather_list(into: Sequence[torch.Tensor], tensor: torch.Tensor, group: int) -> list[torch.Tensor]:
    return all_gather_list_([torch.empty_like(one) for one in into], tensor, group)


@_traced("reduce_scatter(Tensor into, Tensor tensor, str function, str reduction, int group) -> Tensor")
def _reduce_scatter(
    into: torch.Tensor, tensor: torch.Tensor, function: str, reduction: str, group: int
) -> torch.Tensor:
    return reduce_scatter_(torch.empty_like(into), tensor, function, reduction, group)


@_traced("all_to_all(Tensor into, Tensor tensor, int[]? into_sizes, int[]? sizes, int group) -> Tensor")
def _all_to_all(
    into: torch.Tensor, tensor: torch.Tensor, into_sizes: list[int] | None, sizes: list[int] | None, group: int
) -> torch.Tensor:
    return all_to_all_(torch.empty_like(into), tensor, into_sizes, sizes, group)


def _like_first(first: Any, *others: Any) -> Any:
    """What the operations make lies as what is written to in eager."""
    return [torch.empty_like(one) for one in first] if isinstance(first, (list, tuple)) else torch.empty_like(first)


@functools.cache
def operations() -> Any:
    """The operations, which PyTorch is told of when the first collective is captured."""
    library = torch.library.Library("bothways", "FRAGMENT")
    for schema, function in _TRACED.items():
        name = schema.partition("(")[0]
        library.define(schema, tags=(torch.Tag.nondeterministic_seeded,))
        library.impl(name, function, "CompositeExplicitAutograd")
        library.impl(name, _like_first, "Meta")
    return _Operations(library)


class _Operations:
    """Holds the library, without which PyTorch forgets them."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.ops.bothways, name).default
