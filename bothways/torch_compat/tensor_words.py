"""Where C++ keeps what changes from call to call of hundreds of tensors: memory, its holders, the count of changes.

PyTorch's functions that read or write these take tens of nanoseconds for each tensor, and a step has a thousand. Where
the words are is found by looking for values that are known; where that is not certain, the functions are asked.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import sys
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch._C as _C

from bothways.torch_compat.tensor_memory import c_function, tensor_offset

_WORD = ctypes.sizeof(ctypes.c_void_p)
_LENGTH = 128  # bytes of a ``TensorImpl`` that are looked through: it is never shorter
_STORAGE_LENGTH, _COUNTER_LENGTH = 64, 24  # of what it points to
_VERSION_COUNTER = "_ZN5torch8autograd4impl15version_counterERKN2at6TensorE"
# Attributes of tensors that hold their hooks.
HOOKS: str = sys.intern("_backward_hooks")
LATE_HOOKS: str = sys.intern("_post_accumulate_grad_hooks")
HOOKS_GETTER: Any = inspect.getattr_static(torch.Tensor, HOOKS)
LATE_HOOKS_GETTER: Any = inspect.getattr_static(torch.Tensor, LATE_HOOKS)
# Both begin with a pointer to their class's functions and the number of those who hold them.
HOLDERS = _WORD


@dataclass(frozen=True)
class TensorWords:
    """Bytes from the beginning of a ``TensorImpl`` to its storage and to what counts its changes, from that of a
    ``StorageImpl`` to its address and size, from that of a ``VersionCounter`` to its number, and from that of a Python
    tensor to its hooks."""

    storage: int
    data: int
    size: int
    counter: int
    version: int
    hooks: int
    late_hooks: int


WORDS: tuple[str, ...] = tuple(field.name for field in fields(TensorWords))


@functools.cache
@torch.inference_mode(False)  # where a process compiles its first function: tensors of inference have no versions
def tensor_words() -> TensorWords | None:
    """Where the words are; None if unsure."""
    ask = c_function(_VERSION_COUNTER)
    if ask is None or tensor_offset() is None or _WORD != 8:
        return None
    ask.argtypes, ask.restype = [ctypes.c_void_p], ctypes.c_void_p
    samples = [
        torch.zeros(size, dtype=dtype, device="cpu")[start:]
        for size, start, dtype in ((1013, 0, torch.float32), (2029, 3, torch.float32), (4051, 5, torch.float64))
    ]
    for number, sample in enumerate(samples):
        _C._autograd._unsafe_set_version_counter((sample,), (7001 + number,))
    storages = [sample.untyped_storage() for sample in samples]
    counters = [(ask(id(sample) + _offset()) or 0) - sample._cdata for sample in samples]
    if len(set(counters)) != 1 or not 0 < counters[0] < _LENGTH:
        return None
    numbers = [_word(sample._cdata + counters[0]) for sample in samples]
    places = (
        _only([_places(s._cdata, _LENGTH, t._cdata) for s, t in zip(samples, storages, strict=True)]),
        _first([_places(t._cdata, _STORAGE_LENGTH, t.data_ptr()) for t in storages]),
        _only([_places(t._cdata, _STORAGE_LENGTH, t.nbytes()) for t in storages]),
        counters[0],
        _only([_halves(number, _COUNTER_LENGTH, 7001 + index) for index, number in enumerate(numbers)]),
        *_hooks_words(),
    )
    if None in places or not all(map(_counts_holders, storages)):
        return None
    return TensorWords(*places)  # type: ignore[arg-type]


def word_of(name: str) -> int:
    """One of ``TensorWords``; 0 if unsure, since none is at the beginning."""
    words = tensor_words()
    return 0 if words is None else int(getattr(words, name))


def holders_of(storage: torch.UntypedStorage) -> int:
    """What says how many hold a storage; only to be compared."""
    return _word(storage._cdata + HOLDERS)


@functools.cache
@torch.inference_mode(False)
def held_as_gradient() -> tuple[int, int]:
    """The words that count who holds a Python tensor and its ``TensorImpl``, where it is a tensor's gradient, and
    nothing else holds it."""
    owner = torch.zeros(2, device="cpu", requires_grad=True)
    owner.grad = torch.ones(2, device="cpu").data
    tensor, begin = id(owner.grad), owner.grad._cdata
    return _word(tensor), _word(begin + HOLDERS)


@functools.cache
def offset_word() -> int:
    """Bytes from the beginning of a ``TensorImpl`` to where in its storage it begins; 0 if unsure."""
    starts = 10007, 20011, 30011
    samples = [torch.zeros(start + 13, device="cpu")[start:] for start in starts]
    pairs = zip(samples, starts, strict=True)
    return _only([_places(sample._cdata, tensor_length(), start) for sample, start in pairs]) or 0


@functools.cache
@torch.inference_mode(False)
def history_word() -> int:
    """Bytes from the beginning of a ``TensorImpl`` to what autograd has of it, nothing where it has none; 0 if unsure.
    It needs no gradient then."""
    samples = [torch.zeros(size, device="cpu") for size in (2, 3, 5)]
    places = range(2 * _WORD, tensor_length(), _WORD)
    before = [[_word(sample._cdata + place) for place in places] for sample in samples]
    for sample in samples:
        sample.requires_grad_()
    after = [[_word(sample._cdata + place) for place in places] for sample in samples]
    changed = [
        [place for place, old, new in zip(places, *pair, strict=True) if old != new and not old]
        for pair in zip(before, after, strict=True)
    ]
    return _only(changed) or 0


@functools.cache
def object_word() -> int:
    """Bytes from the beginning of a ``TensorImpl`` to where it knows its Python tensor; 0 if unsure. The Python tensor
    of a gradient stays the same one when nothing in Python holds it."""
    owners: list[Any] = [torch.zeros(2, device="cpu", requires_grad=True) for _ in range(3)]
    for owner in owners:
        owner.grad = torch.ones(2, device="cpu").data
    pairs = [(owner.grad._cdata, id(owner.grad)) for owner in owners]
    place = _only([_places(begin, tensor_length(), tensor) for begin, tensor in pairs]) or 0
    return place if pairs == [(owner.grad._cdata, id(owner.grad)) for owner in owners] else 0


def _offset() -> int:
    offset = tensor_offset()
    assert offset is not None
    return offset


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def _places(begin: int, length: int, value: int) -> list[int]:
    return [at for at in range(2 * _WORD, length, _WORD) if _word(begin + at) == value]


def _halves(begin: int, length: int, value: int) -> list[int]:
    """The same for numbers of four bytes."""
    return [at for at in range(2 * _WORD, length, 4) if ctypes.c_uint32.from_address(begin + at).value == value]


def _only(lists: list[list[int]]) -> int | None:
    return lists[0][0] if len(lists[0]) == 1 and all(places == lists[0] for places in lists) else None


def _first(lists: list[list[int]]) -> int | None:
    """An address stands there as what is to be freed, too, behind itself."""
    return lists[0][0] if lists[0] and all(places[:1] == lists[0][:1] for places in lists) else None


def _hooks_words() -> tuple[int | None, int | None]:
    """Where Python tensors keep their hooks: nothing where there are none."""
    samples = [torch.zeros(2, requires_grad=True, device="cpu"), torch.nn.Parameter(torch.zeros(2, device="cpu"))]
    plain = [torch.zeros(2, device="cpu"), torch.nn.Parameter(torch.zeros(2, device="cpu"))]
    places = []
    for name in (HOOKS, LATE_HOOKS):
        for sample in samples:
            sample.register_hook(abs) if name == HOOKS else sample.register_post_accumulate_grad_hook(abs)
        place = _only([_places(id(one), torch.Tensor.__basicsize__, id(getattr(one, name))) for one in samples])
        is_empty = place is not None and not any(_word(id(one) + place) for one in plain)
        places.append(place if is_empty else None)
    return places[0], places[1]


@functools.cache
@torch.inference_mode(False)
def tensor_length() -> int:
    """How many bytes a ``TensorImpl`` has at least, all there is of it; 0 if unsure."""
    ask = getattr(ctypes.CDLL(None), "malloc_usable_size", None)
    if ask is None or tensor_words() is None:
        return 0
    ask.argtypes, ask.restype = [ctypes.c_void_p], ctypes.c_size_t
    samples = [torch.zeros(size, device="cpu") for size in (2, 3, 5, 7, 11, 13)]
    length = min(int(ask(sample._cdata)) for sample in samples)
    return length // _WORD * _WORD if _LENGTH <= length <= 2 * _LENGTH else 0


def _counts_holders(storage: torch.UntypedStorage) -> bool:
    """Whether the word that counts holders changes when there is one more, and is what it was when there is not."""
    before = holders_of(storage)
    more: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (1,), (1,))
    while_held = holders_of(storage)
    del more
    return before != while_held and holders_of(storage) == before
