"""A CUDA graph without a GPU: what was recorded runs again on the same memory, which is filled with NaN in between.

Whoever hands out memory of a recording, reads it too late, or forgets to copy something in, computes with NaN.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from unittest import mock

import torch

from bothways.lower.dialects.c.dialect import C
from bothways.replay.recorders import Lane, recording_with


def at_address(value):
    """The memory of a tensor, which it need not own: a graph holds none of its inputs."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    reach = 1 + sum(step * (size - 1) for step, size in zip(value.stride(), value.shape, strict=True))
    raw = (ctypes.c_char * (reach * value.element_size())).from_address(value.data_ptr())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.frombuffer(raw, dtype=value.dtype).as_strided(value.shape, value.stride())


class FakeRecorded:
    def __init__(self, run, values, outputs, memory):
        self._run, self.outputs, self._memory = run, outputs, memory
        self._values = [at_address(value) for value in values]
        self._results = [output if any(output is one for one in memory) else None for output in outputs]
        self.nodes, self.bytes = 1, sum(tensor.nbytes for tensor in memory)

    def replay(self):
        poison(self._memory)  # what was lent, too: whoever holds it sees it
        with torch.no_grad():
            results = self._run(*self._values)
            for output, result in zip(self._results, results, strict=True):
                if output is not None:
                    output.untyped_storage().copy_(result.untyped_storage())

    def learn(self, expressions, numbers, again):
        self._places = [place for place, value in enumerate(self._values) if type(value) is float]
        return "numbers are fixed in fakes that say so" if self.fixes_numbers else ""

    def set_numbers(self, numbers):
        for place, number in zip(self._places, numbers, strict=True):
            self._values[place] = number

    def done(self, lent):
        lent = {tensor.untyped_storage()._cdata for tensor in lent}
        poison([tensor for tensor in self._memory if tensor.untyped_storage()._cdata not in lent])


class FakeGraphs:
    """Records on the CPU. ``records`` and ``replays`` are what happened; ``fails`` makes recording raise."""

    runs_python = True

    def __init__(self, fails=False, fixes_numbers=False):
        self._lane, self.records, self.fails, self.busy = Lane("cpu"), [], fails, False
        self.fixes_numbers = fixes_numbers

    def why_not_now(self):
        return "busy" if self.busy else ""

    def lane(self, device):
        return self._lane

    def record(self, run, values, takes_list, lane, lends):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        call = (lambda *given: run(list(given))) if takes_list else run
        storages = {}

        def aside(value):
            """A copy with the same storages, so that nothing is written to what is recorded with."""
            if not isinstance(value, torch.Tensor):
                return value
            storage = value.untyped_storage()
            copy = storages.setdefault(storage._cdata, storage.clone())
            fresh = torch.empty(0, dtype=value.dtype)
            return fresh.set_(copy, value.storage_offset(), value.shape, value.stride())

        with torch.random.fork_rng(), torch.no_grad(), torch.inference_mode(False):
            copies = [aside(value) for value in values]
            results = call(*copies)
        known = {id(copy): value for copy, value in zip(copies, values, strict=True)}
        by_storage = {copy.untyped_storage()._cdata: value for copy, value in zip(copies, values, strict=True)
                      if isinstance(copy, torch.Tensor)}
        outputs, memory, made, storages = [], [], {}, {}
        for result in results:
            if not isinstance(result, torch.Tensor):
                outputs.append(result)
            elif id(result) in known:
                outputs.append(known[id(result)])
            elif id(result) in made:
                outputs.append(made[id(result)])
            else:
                storage = result.untyped_storage()
                inside = by_storage.get(storage._cdata)
                home = storages.setdefault(storage._cdata, storage.clone())
                home = home if inside is None else inside.untyped_storage()
                made[id(result)] = output = torch.empty(0, dtype=result.dtype)
                output.set_(home, result.storage_offset(), result.shape, result.stride())
                torch._C._autograd._unsafe_set_version_counter((output,), (result._version,))
                outputs.append(output)
                if inside is None:
                    memory.append(output)
        self.records.append(FakeRecorded(call, values, outputs, memory))
        self.records[-1].fixes_numbers = self.fixes_numbers
        return self.records[-1]


def poison(tensors):
    for tensor in tensors:
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            tensor.fill_(float("nan"))
        elif tensor.dtype is not torch.bool:
            tensor.fill_(torch.iinfo(tensor.dtype).max)
        else:
            tensor.fill_(True)


@contextlib.contextmanager
def fake_graphs(**settings):
    """Functions that are compiled inside for the CPU are replayed. Products are launches, as on a GPU."""
    recorder = FakeGraphs(**settings)
    with recording_with("cpu", recorder), mock.patch.object(C, "multiplies", False):
        yield recorder
