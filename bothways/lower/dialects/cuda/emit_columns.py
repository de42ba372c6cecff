"""Kernels that reduce across memory: threads side by side take columns side by side, threads below each other rows.

What the threads of a column have is put together through shared memory, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bothways.lower.dialects.c_family.operators import COMPUTED
from bothways.lower.dialects.cuda.arranging import (
    PROCESSORS,
    ColumnGeometry,
    Phase,
    column_geometry,
    finishing_geometry,
)
from bothways.lower.dialects.cuda.emit import (
    Lines,
    Span,
    ThreadWriter,
    accumulated,
    combined,
    counted,
    indices,
    initial,
    product,
)
from bothways.lower.dialects.cuda.thirds import Third, ThirdPhase, geometry_of_third
from bothways.lower.ir.sizes import Size, size_hint
from bothways.lower.schedule.tree import (
    Accumulate,
    Accumulator,
    Columns,
    Kernel,
    Let,
    RowValue,
    Statement,
    Store,
    Sweep,
    Total,
)

MOST_BLOCKS = 2**31 - 1
AT_A_TIME = 16  # of what threads have, that one of them puts together
Names = dict[Accumulator, str]


def write_columns(w: ThreadWriter, block: Lines, kernel: Kernel, columns: Columns) -> tuple[int, int]:
    """Returns how many blocks of how many threads."""
    statements = kernel.statements if isinstance(kernel, Phase) else [(part, True) for part in columns.body]
    sweeps = any(isinstance(part, Sweep) for part, _ in statements)
    parts = kernel.splits if isinstance(kernel, Phase) and sweeps else 1
    if isinstance(kernel, ThirdPhase):
        geometry = geometry_of_third(columns, kernel.third)
    elif isinstance(kernel, Phase) and not sweeps:
        geometry = finishing_geometry(columns, kernel.splits)
    else:
        geometry = column_geometry(columns)
    kind, width, across = w.index_type, geometry.width, geometry.across
    size = columns.lanes.size
    tiles = -(-size // (width * across))
    total = product(columns.loops) * tiles * parts
    block.add(f"const int beside = threadIdx.x % {across}, below = threadIdx.x / {across};")
    block.open(f"for ({kind} group = blockIdx.x; group < {total}; group += gridDim.x)")
    block.add(
        f"const {kind} part = group % {parts}, tile = group / {parts} % {tiles}, outer = group / {parts} / {tiles};"
    )
    indices(block, columns.loops, "outer", kind)
    block.add(f"const {kind} wanted = (tile * {across} + beside) * {width};")
    block.add(f"const int active = wanted < {size};")
    block.add(f"const {kind} first = active ? wanted : 0;")
    count = counted(block, size, width)
    block.add(f"const {kind} column = outer * {size} + first;")
    span = Span(columns.lanes, width, "first", count)
    writer = _Columns(w, block, columns, geometry, span, kernel)
    writer.put_together([one.accumulator for one, _ in statements if isinstance(one, Total)])
    for one, stores in statements:
        writer.write(one, stores)
    block.add("__syncthreads();")
    block.close()
    blocks = size_hint(total)
    if isinstance(total, Size):
        blocks = max(blocks, PROCESSORS * 8)
    return min(blocks, MOST_BLOCKS), geometry.threads


class _Columns:
    """Writes the statements of one tile of columns."""

    def __init__(
        self, w: ThreadWriter, block: Lines, columns: Columns, geometry: ColumnGeometry, span: Span, kernel: Kernel
    ) -> None:
        self.w, self.block, self.columns, self.geometry, self.span = w, block, columns, geometry, span
        self.kernel = kernel
        self.wholes: Names = {}

    def write(self, part: Statement, stores: bool) -> None:
        match part:
            case RowValue():
                self._row_value(part, stores)
            case Total():
                self._total(part, stores)
            case Sweep():
                self._sweep(part)

    def _array(self, kind: str, name: str, initially: str = "") -> None:
        self.block.add(f"{kind} {name}[{self.geometry.width}];")
        if initially:
            self._each(f"{name}[v] = {initially};")

    def _each(self, line: str) -> None:
        self.block.add("UNROLL")
        self.block.add(f"for (int v = 0; v < {self.geometry.width}; ++v) {line}")

    def _row_value(self, part: RowValue, stores: bool) -> None:
        name = part.kept.name
        self._array(COMPUTED[part.kept.dtype], name)
        body: list[Let | Store] = list(part.body)
        if part.store is not None and stores:
            body.append(part.store)
        self._body(body, f"{name}[v] = {self.w.text(part.result, self.span)};")
        self.w.lanes.add(part.kept)

    def _body(self, body: list[Let | Store], last: str = "") -> None:
        """What is done once for each column."""
        self.block.open("")
        self.w.body(self.block, body, self.span, active="active && below == 0 && part == 0", last=last)
        self.block.close()

    def _total(self, part: Total, stores: bool) -> None:
        name = part.value.name
        kind = COMPUTED[part.value.dtype]
        self._array(kind, name, f"({kind}){self.wholes[part.accumulator]}[v]")
        self.w.lanes.add(part.value)
        if part.store is not None and stores:
            self._body([part.store])
        if isinstance(self.kernel, ThirdPhase) and self.kernel.third is Third.WHOLE:
            whole = self.w.pointer(self.kernel.wholes[part.accumulator])
            inside = f" && v < {self.span.count}" if self.span.count else ""
            self._each(f"if (active && below == 0{inside}) {whole}[column + v] = {self.wholes[part.accumulator]}[v];")

    def _sweep(self, sweep: Sweep) -> None:
        w, block, geometry, kind = self.w, self.block, self.geometry, self.w.index_type
        length = product(sweep.loops)
        wholes = {reduction: w.fresh(f"{reduction.hint}_all") for reduction in sweep.accumulators}
        for reduction, name in wholes.items():
            self._array(accumulated(reduction), name, initial(reduction))
        self._open_rows(length)
        indices(block, sweep.loops, "at", kind)

        def take(inside: Lines, one: Accumulate, text: str, condition: str) -> None:
            name = f"{wholes[one.into]}[v]"
            inside.add(f"{name} = {combined(one.into, name, text)};")

        w.body(block, sweep.body, self.span, take, "active")
        block.close()
        self.wholes = {**self.wholes, **wholes}
        if not wholes:
            return
        if geometry.down > 1:
            self._reduce(wholes)
        if isinstance(self.kernel, Phase):  # it is one of parts
            condition = "active && below == 0"
            for reduction, name in wholes.items():
                pointer = w.pointer(self.kernel.partials[reduction])
                inside = f" && v < {self.span.count}" if self.span.count else ""
                place = f"part * ({product((*self.columns.loops, self.columns.lanes))}) + column + v"
                self._each(f"if ({condition}{inside}) {pointer}[{place}] = {name}[v];")

    def _open_rows(self, length: Any) -> None:
        """Begin the loop over the rows that a thread takes; where all take as many, so many are known to be read."""
        block, kind, down = self.block, self.w.index_type, self.geometry.down
        parts = self.kernel.splits if isinstance(self.kernel, Phase) else 1
        share = -(-length // parts)
        begin = "below"
        if parts > 1:
            block.add(f"const {kind} begin = part * {share};")
            begin = "begin + below"
        block.add('_Pragma("unroll 4")')
        if type(length) is int and length % (parts * down) == 0:
            block.open(f"for (int turn = 0; turn < {share // down}; ++turn)")
            block.add(f"const {kind} at = {begin} + turn * {down};")
            return
        end = f"(begin + {share} < {length} ? begin + {share} : {length})" if parts > 1 else length
        block.open(f"for ({kind} at = {begin}; at < {end}; at += {down})")

    def _reduce(self, wholes: Names) -> None:
        """What the threads below each other have, put together in order, each column's by one thread that takes a few
        at a time. Every thread has the whole then: if each put it together for itself, all would wait for memory."""
        w, block, geometry = self.w, self.block, self.geometry
        parts = {reduction: w.fresh(f"{reduction.hint}_parts") for reduction in wholes}
        columns, height = geometry.across * geometry.width, geometry.down
        for reduction, name in parts.items():
            block.add(f"SHARED {accumulated(reduction)} {name}[{height}][{columns}];")
            self._each(f"{name}[below][v * {geometry.across} + beside] = {wholes[reduction]}[v];")
        block.add("__syncthreads();")
        while height > 1:
            left = max(1, height // AT_A_TIME)
            tasks = left * columns
            if tasks <= geometry.threads:
                block.open(f"if (threadIdx.x < {tasks})")
                block.add("const int one = threadIdx.x;")
            else:
                block.open(f"for (int one = threadIdx.x; one < {tasks}; one += {geometry.threads})")
            takers = {reduction: w.fresh("taken") for reduction in parts}
            for reduction, taken in takers.items():
                block.add(f"{accumulated(reduction)} {taken} = {initial(reduction)};")
            block.add("UNROLL")
            block.open(f"for (int turn = 0; turn < {height // left}; ++turn)")
            for reduction, taken in takers.items():
                each = f"{parts[reduction]}[one / {columns} + turn * {left}][one % {columns}]"
                block.add(f"{taken} = {combined(reduction, taken, each)};")
            block.close()
            for reduction, taken in takers.items():
                block.add(f"{parts[reduction]}[one / {columns}][one % {columns}] = {taken};")
            block.close()
            block.add("__syncthreads();")
            height = left
        for reduction, name in parts.items():
            self._each(f"{wholes[reduction]}[v] = {name}[0][v * {geometry.across} + beside];")

    def put_together(self, reductions: Sequence[Accumulator]) -> None:
        """What all parts of columns were reduced to: all sums at once, and several parts, since each is waited for."""
        if not isinstance(self.kernel, Phase) or not reductions:
            return
        w = self.w
        wholes = {reduction: w.fresh(f"{reduction.hint}_all") for reduction in reductions}
        if isinstance(self.kernel, ThirdPhase) and self.kernel.third is Third.REST:
            for reduction, whole in wholes.items():
                place = f"{w.pointer(self.kernel.wholes[reduction])}[column + v]"
                inside = f"v >= {self.span.count} ? {initial(reduction)} : " if self.span.count else ""
                self._array(accumulated(reduction), whole, f"{inside}{place}")
            self.wholes = wholes
            return
        for reduction, whole in wholes.items():
            self._array(accumulated(reduction), whole, initial(reduction))
        self.block.add('_Pragma("unroll 8")')
        self.block.open(f"for (int one = below; one < {self.kernel.splits}; one += {self.geometry.down})")
        place = f"one * ({product((*self.columns.loops, self.columns.lanes))}) + column + v"
        inside = f"if (v < {self.span.count}) " if self.span.count else ""
        for reduction, whole in wholes.items():
            part = f"{w.pointer(self.kernel.partials[reduction])}[{place}]"
            self._each(f"{inside}{whole}[v] = {combined(reduction, f'{whole}[v]', part)};")
        self.block.close()
        if self.geometry.down > 1:
            self._reduce(wholes)
        self.wholes = wholes
