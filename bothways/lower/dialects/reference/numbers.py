"""Numbers of each dtype as Python's own, rounded as the dtype holds them, and the memory of tensors as such numbers."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from typing import Any

import torch


def float64(value: Any) -> float:
    return float(value)


def float32(value: Any) -> float:
    return ctypes.c_float(value).value


def float16(value: Any) -> float:
    try:
        return float(struct.unpack("<e", struct.pack("<e", float32(value)))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def bfloat16(value: Any) -> float:
    """The upper half of a float, rounded to the nearest, to even in the middle."""
    if value != value:
        return math.nan
    [bits] = struct.unpack("<I", struct.pack("<f", float32(value)))
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return float(struct.unpack("<f", struct.pack("<I", upper << 16 & 0xFFFFFFFF))[0])


def _wrapping(kind: Any) -> Callable[[Any], int]:
    def wrapped(value: Any) -> int:
        number: int = kind(int(value)).value
        return number

    return wrapped


def whole(value: float) -> int:
    """A number without its fraction; what has no such number is the lowest there is, as CPUs have it."""
    return int(value) if abs(value) < 2.0**63 else -(2**63)


# dtype -> what makes any number one of it: as memory holds it, and as values are computed; half precision is computed
# in single.
STORED: dict[str, Callable[[Any], Any]] = {
    "float64": float64,
    "float32": float32,
    "float16": float16,
    "bfloat16": bfloat16,
    "int64": _wrapping(ctypes.c_int64),
    "int32": _wrapping(ctypes.c_int32),
    "int16": _wrapping(ctypes.c_int16),
    "int8": _wrapping(ctypes.c_int8),
    "uint8": _wrapping(ctypes.c_uint8),
    "bool": bool,
}
COMPUTED = {name: "float32" if name in ("float16", "bfloat16") else name for name in STORED}

LOWEST = {**{f"int{bits}": -(2 ** (bits - 1)) for bits in (8, 16, 32, 64)}, "uint8": 0, "bool": 0}
HIGHEST = {**{f"int{bits}": 2 ** (bits - 1) - 1 for bits in (8, 16, 32, 64)}, "uint8": 255, "bool": 1}

# dtype -> its cells in memory.
CELLS: dict[str, Any] = {
    "float64": ctypes.c_double,
    "float32": ctypes.c_float,
    "float16": ctypes.c_uint16,
    "bfloat16": ctypes.c_uint16,
    "int64": ctypes.c_int64,
    "int32": ctypes.c_int32,
    "int16": ctypes.c_int16,
    "int8": ctypes.c_int8,
    "uint8": ctypes.c_uint8,
    "bool": ctypes.c_uint8,
}


def _same(value: Any) -> Any:
    return value


def _from_float16(bits: int) -> float:
    return float(struct.unpack("<e", struct.pack("<H", bits))[0])


def _to_float16(value: float) -> int:
    return int(struct.unpack("<H", struct.pack("<e", float16(value)))[0])


def _from_bfloat16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def _to_bfloat16(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", bfloat16(value)))[0]) >> 16


READ: dict[str, Callable[[Any], Any]] = {"float16": _from_float16, "bfloat16": _from_bfloat16, "bool": bool}
WRITE: dict[str, Callable[[Any], Any]] = {"float16": _to_float16, "bfloat16": _to_bfloat16, "bool": int}


class Cells:
    """The memory of a tensor, from some byte on, as numbers of a dtype. It lasts as long as the tensor does."""

    def __init__(self, tensor: torch.Tensor, dtype: str, offset: int = 0) -> None:
        self._cells = ctypes.cast(tensor.data_ptr() + offset, ctypes.POINTER(CELLS[dtype]))
        self._read, self._write = READ.get(dtype, _same), WRITE.get(dtype, _same)

    def __getitem__(self, index: int) -> Any:
        return self._read(self._cells[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self._cells[index] = self._write(value)
