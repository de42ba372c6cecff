"""What ``native`` calls at breaks in the place of PyTorch's recurrent layers, for packed sequences on CPUs.

How long sequences are is data, so no graph holds these operations: capture breaks where one is called. PyTorch's own
code of the module runs there, with another operation below it, which takes what C can compute.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Sequence
from typing import Any, cast

import torch

from bothways import torch_compat
from bothways.backends.recurrent import Layer, PackedLayer, Routines, Tensors, is_plain, is_watched, routines_of
from bothways.lower.dialects.c.recurrent import CELLS_OF


def packed(name: str, *args: Any) -> Any:
    """PyTorch's operation of that name; a layer is a call of C where that can be."""
    if len(args) != 9 or not isinstance(args[3], (list, tuple)):  # of sequences that are as long
        return torch_compat.recurrent(name)(*args)
    data, batches, state, weights, has_biases, count, dropout, training, two_ways = args
    states = tuple(state) if name == "lstm" else (state,)
    routines = None if is_watched() else _fitting(name, data, batches, states, weights, has_biases, count, two_ways)
    if routines is None or _may_not_be_saved((data, *states, *weights)):
        return torch_compat.recurrent(name)(*args)
    directions = 1 + two_ways
    each = len(weights) // count
    layer = Layer(routines, batches.clone(), directions, bool(has_biases))
    ends: list[list[torch.Tensor]] = [[] for _ in states]
    for place in range(count):
        own = weights[place * each : (place + 1) * each]
        begins = states
        if count > 1:
            begins = tuple(one.narrow(0, place * directions, directions) for one in states)
        data, *last = _run(layer, data, begins, own)
        for end, one in zip(ends, last, strict=True):
            end.append(one)
        if dropout != 0 and training and place < count - 1:
            data = torch.dropout(data, dropout, True)
    return data, *(end[0] if count == 1 else torch.cat(end) for end in ends)


def _run(layer: Layer, data: torch.Tensor, states: Tensors, weights: Tensors) -> Any:
    if _are_followed((data, *states, *weights)):
        return PackedLayer.apply(layer, len(states), data, *states, *weights)
    return layer.run(data, states, weights)[0]


def _are_followed(tensors: Tensors) -> bool:
    return torch_compat.records_gradients() and any(one.requires_grad for one in tensors)


def _may_not_be_saved(tensors: Tensors) -> bool:
    return _are_followed(tensors) and any(one.is_inference() for one in tensors)


def _fitting(
    name: str, data: torch.Tensor, batches: torch.Tensor, states: Tensors, weights: Sequence[Any], has_biases: bool,
    count: int, two_ways: bool,
) -> Routines | None:  # fmt: skip
    """The C for what an operation is given; None where PyTorch's own has to run, or to say what is wrong."""
    cell, directions = CELLS_OF[name], 1 + two_ways
    each = 4 if has_biases else 2
    if len(states) != 1 + (name == "lstm") or len(weights) != each * directions * count or count < 1:
        return None
    if not all(map(is_plain, (data, *states, *weights))):
        return None
    if data.dim() != 2 or not data.shape[1] or any(one.dim() != 3 for one in states):
        return None
    total, batch, hidden = states[0].shape
    if total != directions * count or not hidden or any(one.shape != states[0].shape for one in states):
        return None
    if not _are_batches(batches, len(data), batch) or (name == "lstm" and int(batches[-1]) == batch):
        return None  # where all sequences are as long, PyTorch has an LSTM in one call as well
    for place, weight in enumerate(weights):
        inputs = data.shape[1] if place < each * directions else directions * hidden
        wide = cell.gates * hidden
        if weight.shape != ((wide, inputs), (wide, hidden), (wide,), (wide,))[place % each]:
            return None
    return routines_of(name)


def _are_batches(batches: torch.Tensor, rows: int, batch: int) -> bool:
    """Whether so many rows are in steps of which each has no more than the one before, and the first has all."""
    if type(batches) is not torch.Tensor or batches.dtype is not torch.int64 or batches.dim() != 1:
        return False
    if batches.device.type != "cpu" or not batches.is_contiguous():
        return False
    counts = batches.tolist()
    is_falling = all(one >= other for one, other in itertools.pairwise(counts))
    return bool(counts) and counts[0] == batch and counts[-1] > 0 and is_falling and sum(counts) == rows


class _PackedOperations:
    """What PyTorch's modules of recurrent layers call ``_VF``, as they see it here; but for operations that are not
    PyTorch's own, as those that tests put there."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._names["_VF"], name)
        is_pytorchs = name in CELLS_OF and operation is torch_compat.recurrent_itself(name)
        return functools.partial(packed, name) if is_pytorchs else operation


class _Names(dict[str, Any]):
    """A module's names of the moment, besides the one that is another."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__(_VF=_PackedOperations(names))
        self._names = names

    def __missing__(self, name: str) -> Any:
        return self._names[name]


def _with_packed(function: types.FunctionType) -> types.FunctionType:
    twin = types.FunctionType(
        function.__code__, _Names(function.__globals__), function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__, twin.__qualname__, twin.__module__ = (
        function.__kwdefaults__, function.__qualname__, function.__module__,
    )
    return twin


# What PyTorch's functions are called as at breaks.
INSTEAD: dict[Any, types.FunctionType] = {
    kind.forward: _with_packed(cast(types.FunctionType, kind.forward))
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
}
