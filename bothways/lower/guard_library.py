"""Builds and loads the C that checks guards, once in a process, and makes checks out of tables of rows.

It reads Python objects and tensors where they lie, so it is used only after it gave the right answers about a dozen
tensors here; without it, or when anything is in doubt, guards are Python.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bothways import torch_compat
from bothways.errors import BothwaysError
from bothways.lower.build import Source, library_of
from bothways.lower.guard_source import FACTS, KNOWN, OPERATIONS, PYTHON, TORCH, source_text

Check = Callable[..., Any]

_HEAD, _ROW = "4q", "4i3q"
_NUMBER = {name: index for index, name in enumerate(OPERATIONS)}
_FACT = {name: 1 << bit for bit, name in enumerate(FACTS)}
_TP_DESCR_GET = 54  # of typeslots.h, part of Python's stable interface


@dataclass
class TensorFacts:
    """What is expected of a tensor; what is None is not asked."""

    dtype: int | None = None
    sizes: tuple[int, ...] | None = None
    is_contiguous: bool | None = None
    strides: tuple[int, ...] | None = None
    device_type: int | None = None
    device_index: int | None = None

    def numbers(self) -> list[int]:
        """The facts as C reads them."""
        asked = (self.dtype, self.sizes, self.is_contiguous, self.strides, self.device_type, self.device_index)
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


class GuardLibrary:
    """The loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        # PyDLL: Python's lock is held, and exceptions are looked for.
        python = ctypes.PyDLL(library._name, handle=library._handle)
        python.bind((ctypes.c_int64 * len(_given()))(*_given()))
        self._make: Any = python.make
        self._make.argtypes, self._make.restype = [ctypes.py_object, ctypes.py_object], ctypes.py_object

    def check(self, rows: Sequence[Row], slots: int, arguments: int, results: Sequence[int] = ()) -> Check:
        """A builtin function of ``arguments`` objects that tells whether all rows hold.

        It returns False, or what is in the slots ``results`` (True when there are none); it never raises for what a
        row does not find.
        """
        tail: list[int] = list(results)
        begin = struct.calcsize(_HEAD) + len(rows) * struct.calcsize(_ROW)
        packed = [struct.pack(_HEAD, len(rows), max(slots, 1), arguments, len(results))]
        kept: list[Any] = []
        for row in rows:
            kept += [row.object, row.other]
            data = row.data
            if isinstance(data, Address):
                kept.append(data.object)
                data = id(data.object)
            elif not isinstance(data, int):
                numbers = data.numbers() if isinstance(data, TensorFacts) else data
                data = begin + len(tail) * 8
                tail += numbers
            operands = id(row.object), id(row.other), data
            packed.append(struct.pack(_ROW, _NUMBER[row.operation], row.to, row.start, row.flag, *operands))
        packed.append(struct.pack(f"{len(tail)}q", *tail))
        made: Check = self._make(b"".join(packed), tuple(kept))  # the rows know the objects by their addresses
        return made


    def like(self, tensor: torch.Tensor) -> Check:
        """Whether something is a tensor like this one, in everything that can be asked."""
        grad = Row("GRADIENT", flag=tensor.requires_grad, object="requires_grad", other=torch_compat.REQUIRES_GRAD)
        return self.check([Row("TYPE", object=type(tensor)), Row("TENSOR", data=facts_of(tensor)), grad], 1, 1)


@functools.cache
def guard_library() -> GuardLibrary | None:
    """The library, built unless it is in the cache; None where there can be none."""
    if not _layouts_are_known():
        return None
    try:
        library = GuardLibrary(library_of(Source((), (source_text(),))))
        return library if _answers_rightly(library) else None
    except (BothwaysError, OSError, RuntimeError):  # no compiler, or no such tensors here
        return None


def _layouts_are_known() -> bool:
    """Whether objects begin with a count and their type, and every function that is called is there."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") or sys.implementation.name != "cpython":
        return False
    word = ctypes.sizeof(ctypes.c_void_p)
    if word != 8 or object.__basicsize__ != 2 * word:
        return False
    if any(ctypes.c_size_t.from_address(id(sample) + word).value != id(type(sample)) for sample in (3, "a", object)):
        return False
    codes = torch_compat.strided_code(), torch_compat.device_code("cpu"), torch_compat.tensor_offset()
    if None in codes or not all(hasattr(ctypes.pythonapi, name) for name in PYTHON):
        return False
    return all(torch_compat.c_function(name) is not None for name in TORCH)


@functools.cache
def _given() -> list[int]:
    """The addresses and numbers that the library is given, in the order it expects them."""
    functions = [getattr(ctypes.pythonapi, name) for name in PYTHON]
    functions += [torch_compat.c_function(name) for name in TORCH]
    slot = ctypes.pythonapi["PyType_GetSlot"]
    slot.argtypes, slot.restype = [ctypes.py_object, ctypes.c_int], ctypes.c_void_p
    known: dict[str, Any] = {
        "exception": id(Exception),
        "dictionary": id(dict),
        "no": id(False),
        "yes": id(True),
        "descr_get": slot(type(torch_compat.REQUIRES_GRAD), _TP_DESCR_GET),
        "tensor_offset": torch_compat.tensor_offset(),
        "strided": torch_compat.strided_code(),
    }
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    return [*addresses, *(known[name] for name in KNOWN)]


# What is asked before the library is trusted.


def facts_of(tensor: torch.Tensor) -> TensorFacts:
    """Everything about a plain tensor that can be asked."""
    device = tensor.device
    return TensorFacts(
        torch_compat.dtype_code(tensor.dtype), tuple(tensor.shape), None, tensor.stride(),
        torch_compat.device_code(device.type), -1 if device.index is None else device.index,
    )  # fmt: skip


def _samples() -> list[torch.Tensor]:
    zeros = functools.partial(torch.zeros, device="cpu")
    return [
        *(zeros(2, 3, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.int64, torch.bool)),
        zeros(3, 2, 4).transpose(0, 2),
        zeros(4, 4)[::2, 1:],
        zeros(1, 5).expand(3, 5),
        zeros(0, 3),
        zeros(()),
        torch.zeros(2, 3, device="meta"),
        torch.nn.Parameter(zeros(2, 3)),
        zeros(2, 3).requires_grad_(),
    ]


def _answers_rightly(library: GuardLibrary) -> bool:
    """Whether each of some tensors is like itself, and like no other, in exactly what differs."""
    samples = _samples()
    checks = [(one, library.like(one)) for one in samples]
    return all(is_like(other) is _alike(one, other) for one, is_like in checks for other in samples)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (type(one), one.dtype, one.shape, one.stride(), one.device, one.requires_grad) == (
        type(other), other.dtype, other.shape, other.stride(), other.device, other.requires_grad,
    )  # fmt: skip
