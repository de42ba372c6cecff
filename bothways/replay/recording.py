"""One recording: where its inputs are, and how a call becomes a copy, a replay, and results of the caller's own."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import torch

from bothways import torch_compat
from bothways.replay.addresses import ANYWHERE, lying_at
from bothways.replay.numbers import Expressions, is_ordinary
from bothways.replay.outputs import LeftOut, Outputs, copy_all
from bothways.replay.recorders import GraphRecorder, Lane, Recorded
from bothways.replay.starting import Starting


class Recording:
    """A function as it was recorded for inputs that lie where these do; those in ``copied`` may lie anywhere. It writes
    to those in ``written``, whether they are among its results or not; to any, where that is not known. Results whose
    numbers are in ``lendable`` may stay in its memory. ``changes``: how often inputs count as changed, by their places
    behind the numbers."""

    def __init__(
        self,
        run: Callable[..., Any],
        values: Sequence[Any],
        copied: Sequence[int],
        recorder: GraphRecorder,
        lane: Lane,
        takes_list: bool,
        lendable: Set[int],
        written: Set[int] | None,
        left_out: LeftOut | None = None,
        changes: Mapping[int, int] | None = None,
    ) -> None:
        self._copied = tuple(copied)
        inputs = list(values)
        with torch.inference_mode(False), torch.no_grad():
            for place in copied:
                inputs[place] = _like(values[place])
        self._statics = [inputs[place] for place in copied]
        copy_all(self._statics, [values[place] for place in copied])  # whoever looks at them meanwhile sees sound data
        self._layouts = [(static.shape, static.stride(), static.dtype) for static in self._statics]
        addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else ANYWHERE for value in values]
        for place in copied:
            addresses[place] = ANYWHERE
        self._lie_there = lying_at(addresses)
        self._floats = [place for place, value in enumerate(values) if type(value) is float]
        self._packed = struct.Struct(f"{len(self._floats)}d").pack
        self._numbers = tuple([values[place] for place in self._floats])
        self._bits = self._packed(*self._numbers)  # minus nothing is another number than nothing
        self._expressions: Expressions | None = None  # unknown until numbers change
        self._is_learned = False
        self._run, self._recorder, self._lane, self._takes_list = run, recorder, lane, takes_list
        self.why_fixed = ""  # why numbers cannot be set
        self.recorded: Recorded = recorder.record(run, inputs, takes_list, lane, bool(lendable))
        self.outputs = Outputs(self.recorded.outputs, inputs, lendable, left_out)
        self.recorded.outputs = ()  # inputs are among them, which are not ours to hold
        self._changes = changes or {}
        self._starting = Starting(self.recorded.replay, self.outputs, values, self._copied, self._changes)
        kept = {*self.outputs.written()}.difference(copied)
        self._updated = [(weakref.ref(values[place]), addresses[place]) for place in kept]
        changed = {*(copied if written is None else written), *self.outputs.written()}
        self._back = [place for place in self._copied if place in changed]
        self.used = 0
        self._seen = 0  # the number of where inputs lay that fitted
        self.lends_results = False  # to the caller, who may hold them for longer than until the next call
        self.bytes = self.recorded.bytes + sum(static.nbytes for static in self._statics)

    @property
    def copied_bytes(self) -> int:
        """What each call copies, in and out."""
        back = sum(self._static(place).nbytes for place in self._back)
        return self.outputs.copied_bytes + sum(static.nbytes for static in self._statics) + back

    def _static(self, place: int) -> torch.Tensor:
        return self._statics[self._copied.index(place)]

    @property
    def is_started_by_c(self) -> bool:
        """Whether it can be started without looking before, since that is done at the launch."""
        return self._starting.is_known

    @property
    def counts(self) -> bool:
        """Whether changes of inputs can be counted where it is started, and what is left out is not given."""
        return self._starting.is_known and self._starting.counts and (self.outputs.are_short or not self._changes)

    def lies_there(self, values: Sequence[Any], seen: int = 0) -> bool:
        """Whether a call's inputs are where the graph reads them, or can be brought there. ``seen`` is the number that
        stands for where they lie, if there is one."""
        if not seen or seen != self._seen:
            if not self._lie_there(*values):
                return False
            self._seen = seen
        return self._can_copy(values)

    def _can_copy(self, values: Sequence[Any]) -> bool:
        for place, (shape, strides, dtype) in zip(self._copied, self._layouts, strict=True):
            value = values[place]
            if value.shape != shape or value.stride() != strides or value.dtype is not dtype:
                return False
        return True

    def fits(self, values: Sequence[Any], seen: int = 0) -> bool:
        """The same, and whether what it has lent is held no more."""
        return self.lies_there(values, seen) and self.outputs.are_free()

    def is_left(self) -> bool:
        """Whether something that it updates is gone, or lies elsewhere: another optimizer's state was loaded, a model
        was deleted. Other inputs may come and go, at addresses that come again."""
        updated = [(reference(), address) for reference, address in self._updated]
        return any(tensor is None or tensor.data_ptr() != address for tensor, address in updated)

    def computes_with(self, values: Sequence[Any]) -> bool:
        """Whether the next replay computes with a call's numbers."""
        return self._packed(*[values[place] for place in self._floats]) == self._bits

    def takes(self, values: Sequence[Any], is_asked_for: bool) -> bool:
        """Whether the next replay computes with a call's numbers; they are set where that can be."""
        numbers = tuple([values[place] for place in self._floats])
        bits = self._packed(*numbers)
        if bits == self._bits:
            return True
        if self.why_fixed or not self._may_set((*numbers, *self._numbers), is_asked_for):
            return False
        assert self._expressions is not None
        if not self._is_learned:
            self.why_fixed = self.recorded.learn(self._expressions, self._numbers, partial(self._again, values))
            self._is_learned = True
        if self.why_fixed:
            return False
        before, self._bits = self._numbers, b""  # if it fails, it computes with none
        try:
            self.recorded.set_numbers(numbers)
        except Exception as error:
            self.why_fixed = f"numbers {before} could not be replaced: {type(error).__name__}: {error}"
            return False
        self._numbers, self._bits = numbers, bits
        return True

    def _may_set(self, numbers: Sequence[float], is_asked_for: bool) -> bool:
        """Whether numbers may be other ones in a replay. Kernels of ours take any. Operations of ATen's have ways of
        their own for some, and refuse some, so that a recording fails and its memory is lost: that is tried only for
        those who ask for replays."""
        if self._expressions is None:
            try:
                self._expressions = Expressions(self._run, self._floats)
            except Exception as error:  # a text that was not written by us
                self.why_fixed = f"what it computes of its numbers is not known: {type(error).__name__}: {error}"
                return False
        if self._expressions.are_ours:
            return True
        if not is_asked_for:
            self.why_fixed = "a number that changes is given to an operation of ATen's"
        return is_asked_for and all(map(is_ordinary, numbers))

    def _again(self, values: Sequence[Any], numbers: Sequence[float]) -> Recorded:
        """The same once more, with other numbers, in memory of its own."""
        inputs = list(values)
        for place, static in zip(self._copied, self._statics, strict=True):
            inputs[place] = static
        for place, number in zip(self._floats, numbers, strict=True):
            inputs[place] = number
        return self._recorder.record(self._run, inputs, self._takes_list, self._lane, True)

    def replay(
        self, values: Sequence[Any], owners: Any = None, counts: bool = False, is_sure: bool = False
    ) -> tuple[Any, ...] | None:
        """The results of a call; None if something is not as it was, and nothing was done. Where ``owners`` have what
        is lent, as it was, that is given again. ``counts``: changes of inputs are counted, which have to lie apart.
        ``is_sure``: it was just seen to fit."""
        if self._copied:
            if not is_sure and not self._can_copy(values):
                return None
            copy_all(self._statics, [values[place] for place in self._copied])
        left = None
        if owners is not None:
            left = self._starting.again(values, owners, counts)
            if left is None:
                return None
        elif not (self._launched(values) if is_sure else self._starting.free(values, counts)):
            return None
        results = self.outputs.hand_out(values, left)
        if self._back:
            # Versions are for others to count. No window is made for that of what may move in between.
            back = [values[place] for place in self._back]
            with torch_compat.uncounted(back):
                copy_all(back, [self._static(place) for place in self._back])
        self.recorded.done(self.outputs.lent)
        return results

    def _launched(self, values: Sequence[Any]) -> bool:
        """Launch it for inputs that were just seen to fit, unless they do not any more."""
        if not self._starting.is_known:
            self.recorded.replay()
            return True
        if self._starting.there(values):
            return True
        if not self._lie_there(*values):
            return False
        # They lie where they lay, in storages that are others, or larger ones.
        self._starting = Starting(self.recorded.replay, self.outputs, values, self._copied, self._changes)
        if self._starting.is_known:
            return self._starting.there(values)
        self.recorded.replay()
        return True


def _like(value: torch.Tensor) -> torch.Tensor:
    """Memory for another tensor, laid out the same way."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
