"""Sums at computed places in C. They are added up one after the other, by one thread: two might add to one place, and
the order would be another one every time."""

from __future__ import annotations

from typing import Any

from bothways.lower.dialects.c.emit import Block, KernelWriter
from bothways.lower.dialects.c_family import operators
from bothways.lower.schedule.tree import Added, Literal, Matrix


def write_added(writer: KernelWriter, body: Block, added: Added) -> None:
    into = writer.pointer(added.into.memory)
    _write_first(writer, body, added, into)
    sizes, index = added.source.shape, added.index
    rank = len(sizes)
    known = max((dim for dim in range(rank) if not _is(index.strides[dim], 0)), default=0)
    place = writer.fresh("place")
    for dim, size in enumerate(sizes):
        if dim == rank - 1 != added.dim:
            body.add("#pragma omp simd")
        _open(body, dim, size)
        if dim == known:
            body.add(f"const int64_t {place} = {_element(writer, index)};")
    strides = added.into.strides
    steps = [_step(f"i{dim}", strides[dim]) for dim in range(rank) if dim != added.dim]
    at = " + ".join(filter(None, [_step(place, strides[added.dim]), *steps]))
    body.add(f"{into}[{at}] += {_element(writer, added.source)};")
    _close(body, rank)


def _write_first(writer: KernelWriter, body: Block, added: Added, into: str) -> None:
    """What is there before anything is added."""
    whole = added.into
    if isinstance(added.first, Literal):
        number = operators.literal(added.first.number, added.first.dtype)
        body.add("#pragma omp simd")
        count = " * ".join(map(str, whole.shape))
        body.add(f"for (int64_t at = 0; at < {count}; ++at) {into}[at] = {number};")
        return
    for dim, size in enumerate(whole.shape):
        if dim == len(whole.shape) - 1:
            body.add("#pragma omp simd")
        _open(body, dim, size)
    body.add(f"{_element(writer, whole)} = {_element(writer, added.first)};")
    _close(body, len(whole.shape))


def _open(body: Block, dim: int, size: Any) -> None:
    body.add(f"for (int64_t i{dim} = 0; i{dim} < {size}; ++i{dim}) {{")
    body.depth += 1


def _close(body: Block, count: int) -> None:
    for _ in range(count):
        body.depth -= 1
        body.add("}")


def _element(writer: KernelWriter, matrix: Matrix) -> str:
    steps = [_step(f"i{dim}", stride) for dim, stride in enumerate(matrix.strides)]
    offset = "" if _is(matrix.offset, 0) else str(matrix.offset)
    return f"{writer.pointer(matrix.memory)}[{' + '.join(filter(None, [offset, *steps])) or '0'}]"


def _step(index: str, stride: Any) -> str:
    if _is(stride, 0):
        return ""
    return index if _is(stride, 1) else f"{index} * {stride}"


def _is(number: Any, what: int) -> bool:
    return type(number) is int and number == what
