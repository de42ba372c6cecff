"""The packed tables of code objects: exception handlers, lines, and instructions as bytes."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# The flags of code that can stop in the middle: generators and coroutines.
SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Handler(NamedTuple):
    """One row of the exception table, in byte offsets: who handles what is raised in [start, end)."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def exception_table(code: types.CodeType) -> list[Handler]:
    """The rows, from the packed form CPython stores."""
    data = iter(code.co_exceptiontable)

    def number() -> int:
        byte = next(data)
        value = byte & 63
        while byte & 64:
            byte = next(data)
            value = value << 6 | byte & 63
        return value

    rows = []
    try:
        while True:
            start, size, target, depth_lasti = number() * 2, number() * 2, number() * 2, number()
            rows.append(Handler(start, start + size, target, depth_lasti >> 1, bool(depth_lasti & 1)))
    except StopIteration:
        return rows


def packed_exception_table(rows: Iterable[Handler]) -> bytes:
    """The form CPython stores: numbers of six bits a byte, the first byte of each row marked."""
    packed = bytearray()
    for row in rows:
        first = len(packed)
        for number in (row.start // 2, (row.end - row.start) // 2, row.target // 2, row.depth << 1 | row.lasti):
            packed += bytes(_six_bits(number))
        packed[first] |= 128
    return bytes(packed)


def _six_bits(number: int) -> Iterator[int]:
    shifts = range((max(number.bit_length(), 1) - 1) // 6 * 6, -1, -6)
    for shift in shifts:
        yield number >> shift & 63 | (64 if shift else 0)


NO_LOCATION, NO_COLUMNS = 15, 13


def one_line(units: int) -> bytes:
    """Rows of the line table for so many code units, all of the first line, without columns."""
    return no_columns(units, 0)


def no_columns(units: int, later: int) -> bytes:
    """Rows for so many code units of a line that comes so many later than that of the row before."""
    rows = bytearray()
    while units:
        length = min(units, 8)
        rows += bytes((0x80 | NO_COLUMNS << 3 | length - 1, *_signed(later)))
        units -= length
        later = 0
    return bytes(rows)


def _signed(number: int) -> Iterator[int]:
    """A number as the line table packs it: the sign in the lowest bit, six bits a byte, the lowest first."""
    rest = -number << 1 | 1 if number < 0 else number << 1
    while rest >= 64:
        yield rest & 63 | 64
        rest >>= 6
    yield rest


def line_of(code: types.CodeType, offset: int) -> int | None:
    """The line of the instruction at a byte offset."""
    return next((line for start, end, line in code.co_lines() if start <= offset < end), None)


def lines_of_nothing(units: int) -> bytes:
    """Rows of the line table for so many code units that stand for no line of the source."""
    rows = bytearray()
    while units:
        length = min(units, 8)
        rows.append(0x80 | NO_LOCATION << 3 | length - 1)
        units -= length
    return bytes(rows)


def instruction(name: str, arg: int = 0) -> bytes:
    """An instruction without caches, with the prefixes that a large operand needs."""
    packed = bytearray()
    for shift in range((max(arg.bit_length(), 1) - 1) // 8 * 8, 0, -8):
        packed += bytes((dis.opmap["EXTENDED_ARG"], arg >> shift & 255))
    return bytes(packed + bytes((dis.opmap[name], arg & 255)))
