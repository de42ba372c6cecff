"""The results of a trace: the values that the forward graph has to return, and how each output is made from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.grad.tracing.trace import Recorder
from bothways.grad.tracing.traced import DATA, DETACH, NotDifferentiable, Output, Result, ResultView, Variables

_DETACHED = torch.ops.aten.detach.default


class TracedResults:
    """The values the forward graph has to return, and how each output is made from them."""

    def __init__(
        self, recorder: Recorder, fakes: list[torch.Tensor], wrapped: list[torch.Tensor], outputs: Sequence[Any]
    ) -> None:
        self.recorder = recorder
        self.values: list[torch.Tensor] = []
        self.nodes: list[torch.fx.Node] = []
        self._inputs = {id(value): index for index, value in enumerate(wrapped)}
        self._wrapped = wrapped
        pairs = enumerate(zip(wrapped, fakes, strict=True))
        self._input_memory: dict[int, list[int]] = {}  # the places of inputs, which may be several over one memory
        for place, (value, fake) in pairs:
            for memory in {memory_of(unwrapped(value)), memory_of(fake)}:
                self._input_memory.setdefault(memory, []).append(place)
        self._owners: dict[int, int] = {}
        tensors = {id(output): output for output in outputs if isinstance(output, torch.Tensor)}
        self._sharing = Counter(memory_of(unwrapped(output)) for output in tensors.values())
        # Of what those are parts of that share memory, one with a history stands for all, or the first.
        bases = sorted(map(_base_of, tensors.values()), key=lambda base: base.requires_grad, reverse=True)
        self._roots: dict[int, torch.Tensor] = {}
        for base in bases:
            self._roots.setdefault(memory_of(unwrapped(base)), base)

    def add(self, places: Sequence[int], variables: Variables) -> None:
        """Have the values at these places of the forward as results, too."""
        order = list(self.recorder.graph.nodes) if places else []
        for place in places:
            if order[place] not in variables:
                raise NotDifferentiable("what autograd saves is not what it saved before")
            self.values.append(variables[order[place]])
            self.nodes.append(order[place])

    def _is_same(self, output: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether a tensor is another one without its history, as ``detach`` and ``data`` give it."""
        if output.requires_grad or output.is_inference() or geometry(output) != geometry(other):
            return False
        inner = unwrapped(output)
        made_by = self.recorder.known(inner)
        is_detached = made_by is not None and made_by.target is _DETACHED
        return is_detached or inner is unwrapped(other)

    def _made_of(self, output: torch.Tensor) -> torch.Tensor:
        """What was detached, as often as it was, to give an output."""
        inner = unwrapped(output)
        while (made_by := self.recorder.known(inner)) is not None and made_by.target is _DETACHED:
            source: Any = made_by.args[0]
            inner = source.meta["val"]
        return inner

    def describe(self, output: Any) -> Output:
        if not isinstance(output, torch.Tensor):
            if output is not None:
                raise NotDifferentiable(f"a {type(output).__name__} is returned")
            return None
        base = _base_of(output)
        inner = unwrapped(output)
        if not has_known_history(output):
            raise NotDifferentiable("autograd does not let an output be used any more")
        if base.is_complex() and not output.is_complex() and self._is_conjugated(inner):
            raise NotDifferentiable("an output is a part of conjugated numbers, which is another view in eager")
        if id(base) in self._inputs:
            index = self._inputs[id(base)]
            if base is output:
                return ResultView(True, index)
            return ResultView(True, index, output, _taken_without_grad(output))
        if memory_of(inner) in self._input_memory:
            places = self._input_memory[memory_of(inner)]
            same = [place for place in places if self._is_same(base, self._wrapped[place])]
            if not same:
                raise NotDifferentiable("an output shares memory with an input in a way that leaves no trace")
            place = min(same, key=lambda place: self._made_of(base) is not unwrapped(self._wrapped[place]))
            by = _without_history(base, self._wrapped[place])
            if base is output:
                return ResultView(True, place, by=by)
            return ResultView(True, place, output, _taken_without_grad(output), by)
        if self._sharing[memory_of(inner)] == 1 and not _is_guarded(output):
            root = base = output  # nothing else sees the memory, so what it is a part of does not matter
        else:
            root = self._roots[memory_of(inner)]
        if base is not root and not self._is_same(base, root):
            raise NotDifferentiable("outputs share memory in a way that leaves no trace")
        by = "" if base is root else _without_history(base, root)
        owner = self._owner(root)
        if base is not output:
            return ResultView(False, owner, output, _taken_without_grad(output), by)
        return ResultView(False, owner, by=by) if by else Result(owner)

    def _is_conjugated(self, inner: torch.Tensor) -> bool:
        """Whether a real view was taken of numbers that are conjugated later, as far as views lead. Stand-ins do not
        tell that they are, so that it is traced as a view that real ones do not have."""
        node: Any = self.recorder.known(inner)
        while node is not None and node.op == "call_function" and ops.of(node.target).is_view:
            if node.target is torch_compat.CONJUGATED:
                return True
            node = node.args[0]
        return False

    def _owner(self, root: torch.Tensor) -> int:
        """The place among the results of what stands for a memory."""
        memory = memory_of(unwrapped(root))
        if memory not in self._owners:
            self._owners[memory] = len(self.values)
            self.values.append(root)
            self.nodes.append(self.recorder.node_of(unwrapped(root)))
        return self._owners[memory]


def _base_of(output: torch.Tensor) -> torch.Tensor:
    base = output._base if output._is_view() else output
    assert base is not None
    return base


def _without_history(output: torch.Tensor, other: torch.Tensor) -> str:
    """How an output is the same tensor: as ``detach`` gives it, which shares its versions, or as ``data``."""
    own, before = torch_compat.version_of(output), torch_compat.version_of(other)
    assert own is not None
    torch.autograd.graph.increment_version(output)
    shares = torch_compat.version_of(other) != before
    torch_compat.set_versions([output], [own])
    return DETACH if shares else DATA


def has_known_history(tensor: torch.Tensor) -> bool:
    """Whether autograd says how a tensor was computed: it does not of one view of several whose base was changed."""
    try:
        tensor.grad_fn  # noqa: B018
    except RuntimeError:
        return False
    return True


def _is_guarded(output: torch.Tensor) -> bool:
    """Whether eager refuses to change a result in place. It never does where no gradients are asked for."""
    return torch.is_grad_enabled() and output._is_view() and torch_compat.refuses_changes(output)


def _taken_without_grad(view: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and torch_compat.was_taken_without_grad(view)


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.size()), tensor.stride(), tensor.storage_offset()


def unwrapped(value: torch.Tensor) -> torch.Tensor:
    return torch_compat.from_functional(value)


def memory_of(tensor: torch.Tensor) -> int:
    if not torch_compat.is_strided(tensor):
        raise NotDifferentiable("a tensor of a special layout is returned")
    return torch_compat.storage_identity(tensor)
