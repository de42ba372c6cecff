"""A layer of a recurrent network over packed sequences on CPUs as one node of autograd's, computed in C.

PyTorch runs dozens of small operations for each step, and as many backward; here a layer is one call each routines. A
backward that is differentiated itself, or that others see, is PyTorch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.call_library import entry
from bothways.calls.entry_source import NUMBER
from bothways.errors import BuildFailed, NoCompiler, warn_once
from bothways.lower.dialects.c.recurrent import CELLS_OF, RecurrentCell, library

Tensors = Sequence[torch.Tensor]
Gradients = Sequence[torch.Tensor | None]
FORWARD_TAKES, BACKWARD_TAKES = 20, 24  # arguments
BYTES = 4  # of a number


@dataclass(frozen=True)
class Routines:
    """C for layers of one kind of cells."""

    name: str
    cell: RecurrentCell
    forward: Callable[..., None]
    backward: Callable[..., None]


@dataclass(frozen=True)
class Layer:
    """One layer over sequences of some lengths: weights are a direction's two and its biases, then the other's."""

    routines: Routines
    batches: torch.Tensor
    directions: int
    has_biases: bool

    def places(self, reverse: int, data: torch.Tensor, state: torch.Tensor) -> tuple[int, ...]:
        """What C is told first of one direction."""
        (rows, inputs), (directions, batch, hidden) = data.shape, state.shape
        steps = len(self.batches)
        return self.batches.data_ptr(), steps, rows, batch, inputs, hidden, directions * hidden, reverse

    def of_direction(self, reverse: int, weights: Sequence[Any]) -> tuple[Any, ...]:
        """Two weights and two biases."""
        count = len(weights) // self.directions
        return (*weights[reverse * count : (reverse + 1) * count], None, None)[:4]

    def saved(self, needs: Sequence[bool], count: int) -> list[bool]:
        """What PyTorch's operations would save, of the data, the states and the weights, for gradients of some."""
        data, states, weights = needs[0], needs[1 : 1 + count], needs[1 + count :]
        each = len(weights) // self.directions
        of_states, of_weights = [False] * count, [False] * len(weights)
        for first in range(0, len(weights), each):
            of_gates = data or states[0] or any(weights[first : first + each])
            of_weights[first] = data
            of_weights[first + 1] = states[0] or (len(self.batches) > 1 and (of_gates or any(states)))
            of_states[0] = of_states[0] or weights[first + 1]
            if count > 1:
                of_states[1] = of_states[1] or of_gates
        return [any(weights[::each]), *of_states, *of_weights]

    def run(self, data: torch.Tensor, states: Tensors, weights: Tensors) -> tuple[list[torch.Tensor], Tensors]:
        """The output and the last states; and what the backward reads, by direction."""
        rows, (directions, batch, hidden) = len(data), states[0].shape
        cell = self.routines.cell
        out = data.new_empty(rows, directions * hidden)
        last = [torch.empty_like(state) for state in states]
        of_hidden = data.new_empty(batch * cell.gates * hidden)
        kept = [data.new_empty(cell.kept(rows, hidden)) for _ in range(directions)]
        for reverse in range(directions):
            at, own = reverse * batch * hidden, self.of_direction(reverse, weights)
            self.routines.forward(
                *self.places(reverse, data, states[0]), data.data_ptr(), *_pair(states, at), *map(_address, own),
                out.data_ptr() + BYTES * reverse * hidden, *_pair(last, at), kept[reverse].data_ptr(),
                of_hidden.data_ptr(),
            )  # fmt: skip
        return [out, *last], kept

    def run_back(
        self, grads: Gradients, data: torch.Tensor, states: Tensors, weights: Tensors, kept: Tensors,
        needs: Sequence[bool],
    ) -> list[torch.Tensor | None]:  # fmt: skip
        """Gradients of the data, the states and the weights, where they are wanted."""
        rows, (directions, batch, hidden) = len(data), states[0].shape
        arrived = [None if grad is None else grad.contiguous() for grad in grads]
        first = [torch.empty_like(state) for state in states]
        into_data = torch.empty_like(data) if needs[0] else None
        begin = 1 + len(states)
        into = [torch.empty_like(one) if need else None for one, need in zip(weights, needs[begin:], strict=True)]
        scratch = data.new_empty(self.routines.cell.scratch(rows, hidden))
        for reverse in range(directions):
            at, own = reverse * batch * hidden, self.of_direction(reverse, weights)
            out = 0 if arrived[0] is None else arrived[0].data_ptr() + BYTES * reverse * hidden
            self.routines.backward(
                *self.places(reverse, data, states[0]), data.data_ptr(), *map(_address, own[:2]),
                kept[reverse].data_ptr(), out, *_pair(arrived[1:], at), *_pair(first, at), _address(into_data),
                *map(_address, self.of_direction(reverse, into)), scratch.data_ptr(), reverse,
            )  # fmt: skip
        return [into_data, *(one if need else None for one, need in zip(first, needs[1:], strict=False)), *into]

    def differentiated(
        self, grads: Gradients, data: torch.Tensor, states: Tensors, weights: Tensors, needs: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """The same by PyTorch's own operation, which is run again, for gradients that may be differentiated."""
        again = torch.is_grad_enabled()
        with torch.enable_grad(), torch_compat.without_autocast():
            # One tensor may be given twice, and has a gradient for each time.
            inputs = [data, *states, *weights]
            inputs = [one.view_as(one) if need else one for one, need in zip(inputs, needs, strict=True)]
            results = of_pytorch(
                self.routines.name, inputs[0], self.batches, inputs[1 : 1 + len(states)], inputs[1 + len(states) :],
                self.has_biases, 1, 0.0, False, self.directions == 2,
            )  # fmt: skip
            arrived = [(one, grad) for one, grad in zip(results, grads, strict=True) if grad is not None]
            wanted = [one for one, need in zip(inputs, needs, strict=True) if need]
            ends, into = zip(*arrived, strict=True)
            gradients = iter(torch.autograd.grad(ends, wanted, into, create_graph=again, allow_unused=True))
        return [next(gradients) if need else None for need in needs]


class PackedLayer(torch.autograd.Function):
    """A layer in autograd's graph, which keeps, and looks after, what PyTorch's operations would."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, count: int, data: torch.Tensor, *others: torch.Tensor) -> Any:
        states, weights = others[:count], others[count:]
        results, kept = layer.run(data, states, weights)
        ctx.set_materialize_grads(False)
        ctx.layer, ctx.count = layer, count
        saved = layer.saved(ctx.needs_input_grad[2:], count)
        inputs = list(zip((data, *others), saved, strict=True))
        ctx.save_for_backward(*(one if is_saved else None for one, is_saved in inputs), *kept)
        # What PyTorch's operations do not save may be changed before the backward, which reads none of it.
        ctx.others = [None if is_saved else (one, one._version) for one, is_saved in inputs]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        layer, count, needs = ctx.layer, ctx.count, ctx.needs_input_grad[2:]
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        saved = ctx.saved_tensors
        kept = saved[-layer.directions :]
        data, *others = (one if other is None else other[0] for one, other in zip(saved, ctx.others, strict=False))
        states, weights = others[:count], others[count:]
        if torch.is_grad_enabled() or is_traced() or not all(grad is None or is_read(grad) for grad in grads):
            _check_unchanged(ctx.others)
            return None, None, *layer.differentiated(grads, data, states, weights, needs)
        return None, None, *layer.run_back(grads, data, states, weights, kept, needs)


def _check_unchanged(others: Sequence[tuple[torch.Tensor, int] | None]) -> None:
    for other in others:
        if other is not None and other[0]._version != other[1]:
            raise RuntimeError(
                "a recurrent layer's gradient is differentiated, and one of the tensors needed for that has been "
                "modified by an inplace operation"
            )


def of_pytorch(name: str, data: Any, batches: Any, states: Tensors, weights: Tensors, *others: Any) -> Any:
    state = tuple(states) if name == "lstm" else states[0]
    return torch_compat.recurrent(name)(data, batches, state, tuple(weights), *others)


def is_traced() -> bool:
    """Whether others may take the place of tensors, or give them more than numbers."""
    return (
        torch_compat.dispatch_mode_depth() > 0
        or torch_compat.functorch_level() is not None
        or torch_compat.in_forward_mode()
        or torch_compat.is_jit_tracing()
    )


def is_watched() -> bool:
    """Whether it could be seen, now, that other operations run than PyTorch's."""
    return (
        is_traced()
        or torch_compat.function_mode_depth() > 0
        or torch_compat.is_any_autocast_enabled()
        or torch_compat.top_saved_tensors_hooks() is not None
        or torch.is_anomaly_enabled()
    )


def is_plain(tensor: Any) -> bool:
    return is_read(tensor) and tensor.is_contiguous()


def is_read(tensor: Any) -> bool:
    """Whether C reads such numbers, when they lie side by side."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype is torch.float32
        and tensor.device.type == "cpu"
        and torch_compat.is_strided(tensor)
        and torch_compat.has_plain_memory(tensor)
    )


@functools.cache
def routines_of(name: str) -> Routines | None:
    """The C for a kind of cells, which is built when it is first asked for; None where it cannot be."""
    try:
        built = library(CELLS_OF[name])
    except (NoCompiler, BuildFailed) as error:
        warn_once(f"recurrent layers run as ATen operations: {error}")
        return None
    if built is None:
        return None
    forward = entry(built.address("forward"), NUMBER * FORWARD_TAKES, built)
    backward = entry(built.address("backward"), NUMBER * BACKWARD_TAKES, built)
    return Routines(name, CELLS_OF[name], forward, backward)


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _pair(states: Gradients, at: int) -> list[int]:
    """Where a hidden and a cell state are, from some number on; 0 for what is not there."""
    return [0 if state is None else state.data_ptr() + BYTES * at for state in (*states, None)[:2]]
