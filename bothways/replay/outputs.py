"""What leaves a recording: the caller's own tensors where the function gave its inputs, fresh tensors for the rest.

Memory that replays write to is never handed out, but for what is lent: results that only the backward of the same
graph sees, and those that the caller was seen to let go before the next call, such as gradients. Nothing is written to
memory that is lent while the caller or autograd holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.call_library import arranging, held_storages, word_library
from bothways.replay.giving import LentTensors

# What is copied by one launch: a number times one is that number, whatever it is.
IN_ONE_LAUNCH = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32)


class NotPlanned(Exception):
    """A function gives what no copy can stand for."""


@dataclass(frozen=True)
class Window:
    """An output that lies in the memory of an input: at an offset from its first element."""

    output: int
    place: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, value: torch.Tensor) -> torch.Tensor:
        return value.as_strided(self.shape, self.strides, value.storage_offset() + self.offset)


@dataclass(frozen=True)
class LeftOut:
    """Results that whoever calls knows already: those from ``count`` on, if they are the inputs at these places."""

    count: int
    places: Sequence[int]

    def are(self, inputs: Mapping[int, int], count: int) -> bool:
        """Whether they are, among so many outputs; ``inputs`` has the places of outputs that are inputs."""
        return [inputs.get(number) for number in range(self.count, count)] == list(self.places)


class Outputs:
    """How to hand out the outputs of one recording. ``values`` are what it was recorded with; outputs whose numbers are
    in ``lendable`` may be lent. Where those that follow the first ``left_out.count`` are the inputs at these places,
    they are not given."""

    def __init__(
        self, outputs: Sequence[Any], values: Sequence[Any], lendable: Set[int], left_out: LeftOut | None = None
    ) -> None:
        self._rest: list[Any] = []  # what is the same at every call: numbers, and nothing
        self._inputs: list[tuple[int, int]] = []
        self._windows: list[Window] = []
        self._copied: dict[torch.dtype, tuple[list[torch.Tensor], list[list[int]]]] = {}
        self._cloned: list[tuple[torch.Tensor, list[int]]] = []
        self._together: list[tuple[torch.Tensor, list[tuple[torch.Tensor, list[int]]]]] = []
        self._lent: list[tuple[torch.Tensor, list[int]]] = []
        places = {id(value): place for place, value in enumerate(values) if isinstance(value, torch.Tensor)}
        memories = {torch_compat.storage_of(value): place for place, value in enumerate(values)
                    if isinstance(value, torch.Tensor) and value.numel()}  # fmt: skip
        groups: dict[int, dict[int, tuple[torch.Tensor, list[int]]]] = {}
        fixed: list[int] = []
        for number, output in enumerate(outputs):
            if not isinstance(output, torch.Tensor):
                if output is not None and not isinstance(output, (bool, int, float)):
                    raise NotPlanned(f"it gives a {type(output).__name__}")
                fixed.append(number)
                self._rest.append(output)
                continue
            if id(output) in places:
                self._inputs.append((number, places[id(output)]))
                continue
            memory = torch_compat.storage_of(output)
            if memory in memories:
                self._windows.append(_window(number, output, memories[memory], values[memories[memory]]))
                continue
            groups.setdefault(memory, {}).setdefault(id(output), (output, []))[1].append(number)
        for group in groups.values():
            self._plan(list(group.values()), lendable)
        # The number of holders when no caller has any of it: our tensors, and the object that counts.
        lent = {torch_compat.storage_of(tensor): tensor.untyped_storage() for tensor, _ in self._lent}
        self.lent = [tensor for tensor, _ in self._lent]
        self._storages = list(lent.values())
        self._handles = [storage._cdata for storage in self._storages]
        self._uses = torch_compat.uses_of(self._handles)
        self._memories = self._memories_now()
        library = word_library()
        self.held = None if library is None else held_storages(self._storages)
        self._are_held_as_now = library.holding(self.held) if library and self.held else lambda: False
        # Asked for when it goes, which may be while a tensor has no address.
        self.lent_addresses = [tensor.data_ptr() for tensor in self.lent]
        self.given_again = LentTensors(self.lent, [tensor._version for tensor in self.lent], self._storages)
        is_short = left_out is not None and left_out.are(dict(self._inputs), len(outputs))
        count = left_out.count if left_out is not None and is_short else len(outputs)
        order = self._order(count, len(values), fixed)
        self._gives_inputs = any(place < len(values) for place in order)
        inputs = len(values) if self._gives_inputs else 0
        self.are_short = is_short
        self._arranged = arranging([place - len(values) + inputs for place in order], inputs + self._made)

    def _plan(self, group: list[tuple[torch.Tensor, list[int]]], lendable: Set[int]) -> None:
        """Decide what becomes of outputs that lie in one storage."""
        if all(number in lendable for _, own in group for number in own):
            self._lent += group
            return
        [first, *others] = group
        if others or not is_dense(first[0]):
            self._together.append((_whole(first[0]), group))
        elif first[0].dtype in IN_ONE_LAUNCH:
            tensors, places = self._copied.setdefault(first[0].dtype, ([], []))
            tensors.append(first[0])
            places.append(first[1])
        else:
            self._cloned.append(first)

    def _order(self, outputs: int, inputs: int, fixed: Sequence[int]) -> list[int]:
        """For each output, its place in all that ``hand_out`` has: the call's values, behind them what is made, and at
        the end what is lent."""
        places = dict(self._inputs)
        items = [[window.output] for window in self._windows]
        items += [numbers for _, copied in self._copied.values() for numbers in copied]
        items += [numbers for _, numbers in self._cloned]
        items += [numbers for _, group in self._together for _, numbers in group]
        items += [[number] for number in fixed]
        self._made = len(items)
        items += [numbers for _, numbers in self._lent]
        places.update({number: inputs + place for place, numbers in enumerate(items) for number in numbers})
        return [places[number] for number in range(outputs)]

    @property
    def copied_bytes(self) -> int:
        """How much is copied at each replay."""
        tensors = [tensor for tensors, _ in self._copied.values() for tensor in tensors]
        tensors += [tensor for tensor, _ in self._cloned] + [tensor for tensor, _ in self._together]
        return sum(tensor.nbytes for tensor in tensors)

    def written(self) -> list[int]:
        """The inputs that are among the outputs, since the function has written to them."""
        return [place for _, place in self._inputs] + [window.place for window in self._windows]

    def _memories_now(self) -> list[tuple[int, int]]:
        return [(storage.data_ptr(), storage.nbytes()) for storage in self._storages]

    def are_free(self) -> bool:
        """Whether neither the caller nor autograd holds what was lent, and it lies where it lay."""
        if self._are_held_as_now():
            return True
        return torch_compat.uses_of(self._handles) == self._uses and not self.are_gone()

    def are_gone(self) -> bool:
        """Whether something that was lent lies elsewhere: who held it had its storage resized."""
        return self._memories_now() != self._memories

    def hand_out(self, values: Sequence[Any], left: Sequence[torch.Tensor] | None = None) -> tuple[Any, ...]:
        """The outputs of the replay that was launched last, for a call with these values; ``left`` are tensors that
        can be given again."""
        items = [window.of(values[window.place]) for window in self._windows]
        with torch_compat.below_autograd():
            for sources, _ in self._copied.values():
                items += torch_compat.foreach_mul(sources, 1) if len(sources) > 1 else [_copy(sources[0])]
            for source, _ in self._cloned:
                items.append(_copy(source))
            for source, group in self._together:
                copy = _copy(source)
                items += [_part(copy, tensor) for tensor, _ in group]
        items += self._rest
        lent = self.given_again.fresh() if left is None else self.given_again.again(left)
        return self._arranged([*values, *items] if self._gives_inputs else items, lent)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own that nothing has changed yet; copying counts as a change."""
    return tensor.clone().data


def _part(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that lies in a memory, of bytes, as another one does in its own. All of one memory have one version: who
    changes one of them has changed what a backward reads of the others."""
    if memory.numel() % like.element_size():
        return torch_compat.set_storage(like.new_empty(0), memory.untyped_storage(), like)
    return memory.view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset()).detach()


def _window(number: int, output: torch.Tensor, place: int, value: torch.Tensor) -> Window:
    if output.dtype is not value.dtype:
        raise NotPlanned("it gives an input as a tensor of another dtype")
    offset = int(output.storage_offset() - value.storage_offset())
    return Window(number, place, output.dtype, tuple(output.shape), output.stride(), offset)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of the storage that a tensor lies in, as bytes."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory without a gap, each at a place of its own."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def is_apart(tensor: torch.Tensor) -> bool:
    """Whether each element has a place of its own, gaps or not."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += stride * (size - 1)
    return True


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy tensors, by one launch for each dtype."""
    kinds: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        pair = kinds.setdefault(target.dtype, ([], []))
        pair[0].append(target)
        pair[1].append(source)
    with torch_compat.below_autograd():
        for pair in kinds.values():
            torch_compat.foreach_copy_(*pair)
