"""Kernels that reduce nothing: each thread takes a few elements side by side."""

from __future__ import annotations

from collections.abc import Sequence

from bothways.lower.dialects.cuda.arranging import PROCESSORS, THREADS, width_along
from bothways.lower.dialects.cuda.emit import Lines, Span, ThreadWriter, counted, indices, product
from bothways.lower.ir.sizes import Size, size_hint
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.tree import Kernel, Lanes, Let, Load, Rows, Statement, Store

MOST_BLOCKS = 2**31 - 1
LONG_ROW = 256
TURNS = 4  # vectors that a thread takes, where it computes something of what is the same for all
MANY_BLOCKS = 4 * PROCESSORS


def write_pointwise(w: ThreadWriter, block: Lines, kernel: Kernel) -> tuple[int, int]:
    """Returns how many blocks of how many threads."""
    first = kernel.body[0]
    loops: tuple[Loop, ...] = ()
    if isinstance(first, Rows):
        loops, [first] = first.loops, first.body
    if not isinstance(first, Lanes):
        block.open("if (blockIdx.x == 0 && threadIdx.x == 0)")
        w.body(block, [part for part in kernel.body if isinstance(part, (Let, Store))], Span(None, 1, ""))
        block.close()
        return 1, 32
    lane, kind = first.loop, w.index_type
    # Rows that end amid a vector lie apart, as products pad them, and are long.
    width = width_along(lane, first.body, exact=bool(loops) and size_hint(lane.size) < LONG_ROW)
    along = -(-lane.size // width) if width > 1 else lane.size
    total = along * product(loops)
    block.add(f"const {kind} total = {total};")
    block.add(f"const {kind} step = ({kind})gridDim.x * {THREADS};")
    block.open(f"for ({kind} at = ({kind})blockIdx.x * {THREADS} + threadIdx.x; at < total; at += step)")
    if loops:
        block.add(f"const {kind} row = at / {along}, first = at % {along}{f' * {width}' if width > 1 else ''};")
        indices(block, loops, "row", kind)
    else:
        block.add(f"const {kind} first = at{f' * {width}' if width > 1 else ''};")
    w.body(block, first.body, Span(lane, width, "first", counted(block, lane.size, width)))
    block.close()
    blocks = -(-size_hint(total) // THREADS)
    if blocks >= TURNS * MANY_BLOCKS and _reads_one_number(first.body):
        blocks = -(-blocks // TURNS)
    if isinstance(total, Size):  # more of them may come
        blocks = max(blocks, PROCESSORS * 8)
    return min(blocks, MOST_BLOCKS), THREADS


def _reads_one_number(body: Sequence[Statement]) -> bool:
    """Whether something is read that is the same wherever it is read: a loss's own gradient, or how many it is of."""
    loads = [part.expression for part in body if isinstance(part, Let) and isinstance(part.expression, Load)]
    return any(not load.element.steps and load.element.taken is None for load in loads)
