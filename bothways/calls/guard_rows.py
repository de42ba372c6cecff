"""Tables of guards: their rows as Python writes them, and as C reads them."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.guard_source import FACTS, OPERATIONS
from bothways.calls.known_source import KNOWN_TENSOR
from bothways.calls.memo_source import MEMO_ENTRY, MEMO_HEAD

_HEAD, _ROW = "5q", "4i3q"
_NUMBER = {name: index for index, name in enumerate(OPERATIONS)}
Results = Sequence[int | Sequence[int]]  # slots that a table hands over, and groups of them, each as one tuple
_FACT = {name: 1 << bit for bit, name in enumerate(FACTS)}


@dataclass
class TensorFacts:
    """What is expected of a tensor; what is None is not asked."""

    dtype: int | None = None
    sizes: tuple[int, ...] | None = None
    is_contiguous: bool | None = None
    strides: tuple[int, ...] | None = None
    device_type: int | None = None
    device_index: int | None = None
    has_plain_memory: bool | None = None

    def numbers(self) -> list[int]:
        """The facts as C reads them."""
        place = self.device_type, self.device_index
        asked = (self.dtype, self.sizes, self.is_contiguous, self.strides, *place, self.has_plain_memory)
        facts = sum(bit for bit, fact in zip(_FACT.values(), asked, strict=True) if fact is not None)
        sizes, strides = self.sizes or (), self.strides or ()
        dimensions = max(len(sizes), len(strides))
        kind = [self.dtype or 0, self.device_type or 0, self.device_index or 0]
        return [facts, *kind, dimensions, *sizes, *[0] * (dimensions - len(sizes)), *strides]


@dataclass(frozen=True)
class Address:
    """Where an object is, which is kept alive for it."""

    object: Any


@dataclass
class Row:
    """One step of a table: an operation of ``guard_source``, on numbered slots; ``data`` is whatever else it needs."""

    operation: str
    start: int = 0  # the slot it looks at
    to: int = 0  # the slot it fills
    flag: bool = True
    object: Any = None
    other: Any = None
    data: int | Address | Sequence[int] | TensorFacts = 0


def facts_of(tensor: torch.Tensor) -> TensorFacts:
    """Everything about a plain tensor that can be asked."""
    device = tensor.device
    return TensorFacts(
        torch_compat.dtype_code(tensor.dtype), tuple(tensor.shape), None, tensor.stride(),
        torch_compat.device_code(device.type), -1 if device.index is None else device.index,
        torch_compat.has_plain_memory(tensor) or None,
    )  # fmt: skip


def packed(
    rows: Sequence[Row], slots: int, arguments: int, results: Results, remembered_from: int | None
) -> tuple[bytes, tuple[Any, ...]]:
    """A table as C reads it, and the objects it knows by their addresses. Of one of so many rows what was read is
    remembered."""
    tail: list[int] = []
    for result in results:
        tail += [result] if isinstance(result, int) else [-len(result), *result]
    begin = struct.calcsize(_HEAD) + len(rows) * struct.calcsize(_ROW)
    is_remembered = remembered_from is not None and len(rows) >= remembered_from
    memo = _memo(rows, max(slots, 1)) if is_remembered else None
    address = 0 if memo is None else ctypes.addressof(memo)
    parts = [struct.pack(_HEAD, len(rows), max(slots, 1), arguments, len(results), address)]
    kept: list[Any] = [memo]
    for row in rows:
        # Names that are one object are found at once, and known by it.
        named = sys.intern(row.object) if type(row.object) is str else row.object
        kept += [named, row.other]
        data = row.data
        if isinstance(data, Address):
            kept.append(data.object)
            data = id(data.object)
        elif not isinstance(data, int):
            numbers = data.numbers() if isinstance(data, TensorFacts) else data
            data = begin + len(tail) * 8
            tail += numbers
        operands = id(named), id(row.other), data
        parts.append(struct.pack(_ROW, _NUMBER[row.operation], row.to, row.start, row.flag, *operands))
    parts.append(struct.pack(f"{len(tail)}q", *tail))
    return b"".join(parts), tuple(kept)


def _memo(rows: Sequence[Row], slots: int) -> ctypes.Array[Any]:
    """Memory for what C remembers of a table (``calls/memo_source.py``)."""
    tensors = sum(row.operation == "TENSOR" for row in rows)
    room = 4 * slots
    words = MEMO_HEAD + 2 * slots + MEMO_ENTRY * len(rows) + room
    words += tensors * (KNOWN_TENSOR + torch_compat.tensor_length() // 8)
    words += (4 * slots + 3 * len(rows) + 1) // 2 + (5 * slots + 7) // 8
    memory = (ctypes.c_int64 * words)()
    memory[:4] = [slots, len(rows), room, tensors]
    return memory
