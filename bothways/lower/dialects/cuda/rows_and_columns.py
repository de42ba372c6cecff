"""Kernels that reduce the rows of a matrix and its columns at once, so that what both read is read once: the backward
of a norm, whose gradients are of the rows for the input and of the columns for the parameters.

A team of threads takes rows one after the other. Each thread has columns of its own, whose sums it carries from row to
row; the teams of a block put theirs together in the end, in order, and a kernel that follows what the blocks come to.
The next row is read while one is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bothways.lower.dialects.cuda.arranging import (
    LARGE,
    PROCESSORS,
    RowGeometry,
    arranged,
    elements_in,
    phases_of,
    row_geometry,
    statements_of_row,
    width_along,
)
from bothways.lower.dialects.cuda.emit import (
    Lines,
    Span,
    ThreadWriter,
    accumulated,
    combined,
    indices,
    initial,
    memory_dtype,
)
from bothways.lower.dialects.cuda.emit import product as product_of
from bothways.lower.dialects.cuda.emit_rows import (
    close_spans,
    keep_as_pairs,
    open_spans,
    write_indices,
    write_reading,
    write_stages,
)
from bothways.lower.dialects.cuda.thirds import thirds_of
from bothways.lower.ir.prims import Memory
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.tree import (
    Accumulate,
    Accumulator,
    Apply,
    Columns,
    Convert,
    Count,
    Element,
    Expression,
    FromScratch,
    Inner,
    Kernel,
    Let,
    Load,
    Rows,
    Sweep,
)

LEAST_TEAM, MOST_TEAM = 64, 512  # threads that take a row
MOST_TEAMS = 8  # of a block: there are as many barriers, and as many again
COLUMNS, MOST_COLUMNS = 8, 16  # that a thread takes, and of which it has registers for the sums
# Numbers that a thread has of rows and columns, up to which so many threads are on a processor, in one block or a few.
RESIDENT = ((40, 1024), (1 << 20, 768))
SHARED_OF_TEAMS = 40 << 10  # bytes that they have to put their sums together
ROWS_OF_PART = 8  # at least: what a block comes to is as large as a row or two
LEAST_PARTS = 64  # that keep a GPU busy


@dataclass(frozen=True)
class SweepForColumns(Sweep):
    """A sweep over a row whose accumulators are of the columns."""


@dataclass(frozen=True, eq=False)
class RowsAndColumns(Kernel):
    """Rows whose first statement is the sweep for the columns; these are put together from so many parts."""

    splits: int = 1
    partials: tuple[tuple[Accumulator, Memory], ...] = ()


def all_arranged(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels that do what several do, one after the other."""
    left, result = list(kernels), list[Kernel]()
    while left:
        kernel = left.pop(0)
        joined: list[Kernel] | None = None
        for place, other in enumerate(left):
            if not any(_conflict(other, before) for before in (kernel, *left[:place])):
                joined = _joined(kernel, other) or _joined(other, kernel)
            if joined is not None:
                del left[place]
                break
        result += joined or thirds_of(kernel) or arranged(kernel)
    return result


def together(kernel: Kernel, geometry: RowGeometry) -> int:
    """How many blocks are on a processor at once."""
    return max(1, _resident(kernel, geometry) // geometry.threads)


def _resident(kernel: Kernel, geometry: RowGeometry) -> int:
    numbers = numbers_of(kernel, geometry)
    return next(threads for most, threads in RESIDENT if numbers <= most)


def numbers_of(kernel: Kernel, geometry: RowGeometry) -> float:
    """How many registers a thread needs for what it has of rows, of the next ones as well, and of columns."""
    own, always = _read(statements_of_row(kernel), geometry)
    words = sum(element.memory.dtype.itemsize / 4 for element in (*own, *own, *always))
    sums = [one for part in statements_of_row(kernel) if isinstance(part, SweepForColumns) for one in part.accumulators]
    return geometry.spans * geometry.width * (words + len(sums))


def _conflict(one: Kernel, other: Kernel) -> bool:
    return not one.written.isdisjoint(other.memories) or not other.written.isdisjoint(one.memories)


def _joined(rows: Kernel, columns: Kernel) -> list[Kernel] | None:
    """A kernel of rows and one of columns as one, and the one that puts the columns together; None where they stay."""
    first, across = rows.body[0], columns.body[0]
    if not isinstance(first, Rows) or not isinstance(across, Columns) or len(columns.body) > 1 or across.loops:
        return None
    sweeps = [part for part in first.body if isinstance(part, Sweep)]
    sums = [part for part in across.body if isinstance(part, Sweep)]
    if not sweeps or len(sums) != 1 or across.body[0] is not sums[0] or not sums[0].accumulators:
        return None
    [own], [lane, *more] = sums, sweeps[0].loops
    sizes = [loop.size for loop in (*first.loops, lane, *own.loops, across.lanes)]
    if more or any(type(size) is not int for size in sizes) or lane.size != across.lanes.size:
        return None
    if [loop.size for loop in first.loops] != [loop.size for loop in own.loops]:
        return None
    renamed = _Renamed({across.lanes: lane, **dict(zip(own.loops, first.loops, strict=True))})
    body = tuple(map(renamed.statement, own.body))
    if None in body or not _read_alike(body, sweeps):
        return None
    sweep = SweepForColumns((lane,), own.accumulators, tuple(part for part in body if part is not None))
    whole = replace(rows, body=(Rows(first.loops, (sweep, *first.body)),))
    geometry = geometry_of(whole)
    if row_geometry(rows).splits > 1 or geometry is None:
        return None
    count = product_of(first.loops)
    if count * lane.size < LARGE:  # of what a cache holds, the second reading costs next to nothing
        return None
    splits = min(PROCESSORS * together(whole, geometry), count // ROWS_OF_PART)
    if splits < LEAST_PARTS:
        return None
    parts, finish = phases_of(columns, across.body, splits, lane.size)
    used = dict.fromkeys((*rows.memories, *parts.memories))
    written = rows.written | parts.written
    memories = (*(one for one in used if one not in written), *(one for one in used if one in written))
    names = {key: rows.names.get(key, 0) + columns.names.get(key, 0) for key in (*rows.names, *columns.names)}
    origins = tuple(dict.fromkeys((*rows.origins, *columns.origins)))
    both = RowsAndColumns(
        memories, frozenset(written), whole.body, rows.hint, origins, names, splits, tuple(parts.partials.items())
    )
    return [both, finish]


def _read_alike(body: Iterable[Inner | None], sweeps: Sequence[Sweep]) -> bool:
    """Whether rows and columns read something large together."""
    own = {element for part in body if part is not None for element, _ in elements_in(part)}
    others = {element for sweep in sweeps for part in sweep.body for element, _ in elements_in(part)}
    return any(len(element.steps) > 1 for element in own & others)


def geometry_of(kernel: Kernel) -> RowGeometry | None:
    """How a block takes a row: all its vectors at once. None where rows are too short, or end amid a vector."""
    first = kernel.body[0]
    assert isinstance(first, Rows)
    sweeps = [part for part in first.body if isinstance(part, Sweep)]
    lane = sweeps[0].loops[-1]
    width = width_along(lane, [inside for part in sweeps for inside in part.body], exact=True)
    vectors = lane.size // width
    spans = max(-(-vectors // MOST_TEAM), min(COLUMNS // width, vectors // LEAST_TEAM))
    team = -(-vectors // (32 * spans)) * 32
    if width == 1 or team < LEAST_TEAM or spans * width > MOST_COLUMNS:
        return None
    sums = [one for part in sweeps for one in part.accumulators if isinstance(part, SweepForColumns)]
    each = team * spans * width * max(map(_bytes, sums), default=1)
    one = RowGeometry(first.loops, (lane,), width, team, spans, team, turns=True)
    teams = max(1, min(MOST_TEAMS, _resident(kernel, one) // team, SHARED_OF_TEAMS // each))
    return replace(one, threads=teams * team)


class _Renamed:
    """Statements with other loops in the place of their own; None for one that is not known here."""

    def __init__(self, loops: dict[Loop, Loop]) -> None:
        self._loops = loops

    def statement(self, part: Any) -> Let | Accumulate | None:
        match part:
            case Let():
                expression = self._expression(part.expression)
                return None if expression is None else Let(part.value, expression)
            case Accumulate():
                value = self._expression(part.value)
                return None if value is None else Accumulate(part.into, value)
        return None

    def _expression(self, value: Expression) -> Any:
        match value:
            case Load():
                element = self._element(value.element)
                return None if element is None else Load(element, value.dtype)
            case Apply():
                args = tuple(map(self._expression, value.args))
                return None if None in args else replace(value, args=args)
            case Convert():
                arg = self._expression(value.arg)
                return None if arg is None else replace(value, arg=arg)
            case FromScratch() | Count():
                return None
        return value

    def _element(self, element: Element) -> Element | None:
        if element.taken is not None or any(loop not in self._loops for loop, _ in element.steps):
            return None
        # The outer loop is the first, as it is for rows.
        order = list(self._loops.values())
        steps = sorted(((self._loops[loop], step) for loop, step in element.steps), key=lambda one: order.index(one[0]))
        lane = order[0]
        steps = [*(one for one in steps if one[0] != lane), *(one for one in steps if one[0] == lane)]
        return replace(element, steps=tuple(steps))


# Spelling.


def write_both(w: ThreadWriter, block: Lines, kernel: RowsAndColumns) -> tuple[int, int, int]:
    """Returns how many blocks of how many threads, and how many of them fit a processor."""
    geometry = geometry_of(kernel)
    assert geometry is not None
    kind, rows, teams = w.index_type, product_of(geometry.kept), geometry.teams
    [across, *rest] = statements_of_row(kernel)
    assert isinstance(across, SweepForColumns)
    own, always = _read(statements_of_row(kernel), geometry)
    block.add(f"const int thread = threadIdx.x % {geometry.team}, team = threadIdx.x / {geometry.team};")
    constant = {element: w.raw(element, "all", _span(geometry)) for element in always}
    write_reading(w, block, constant, geometry)
    sums = _started(w, block, across, geometry)
    ahead = _Ahead(w, block, geometry, own)
    ahead.read(f"blockIdx.x * {teams} + team", rows)
    block.add("int turn = 0;")  # what a row is reduced through is read while the next one is
    step = f"({kind})gridDim.x * {teams}"
    block.open(f"for ({kind} row = blockIdx.x * {teams} + team; row < {rows}; row += {step})")
    indices(block, geometry.kept, "row", kind)
    keep_as_pairs(block, constant.values(), geometry.spans * geometry.width)
    ahead.take()
    ahead.read(f"row + {step}", rows)
    _write_across(w, block, across, sums, geometry)
    write_stages(w, block, replace(kernel, body=(Rows(geometry.kept, tuple(rest)),)), geometry, "")
    block.add("turn ^= 1;")
    block.close()
    if teams > 1:
        _put_together(w, block, kernel, sums, geometry.reduced[-1].size)
    else:
        _write_parts(w, block, kernel, sums, geometry)
    return kernel.splits, geometry.threads, together(kernel, geometry)


def _span(geometry: RowGeometry) -> Span:
    return Span(geometry.reduced[-1], geometry.width, "first")


def _read(body: Sequence[Any], geometry: RowGeometry) -> tuple[list[Element], list[Element]]:
    """What is read along a row: that which is another for each row, and that which is not."""
    lane = geometry.reduced[-1]
    elements = dict.fromkeys(
        element
        for part in body
        if isinstance(part, Sweep)
        for inside in part.body
        for element, writes in elements_in(inside)
        if not writes and element.taken is None and element.moves_along(lane)
    )
    own = [element for element in elements if any(loop != lane for loop, _ in element.steps)]
    return own, [element for element in elements if element not in own]


def _started(w: ThreadWriter, block: Lines, across: SweepForColumns, geometry: RowGeometry) -> dict[Accumulator, str]:
    sums = {reduction: w.fresh(f"{reduction.hint}_all") for reduction in across.accumulators}
    count = geometry.spans * geometry.width
    for reduction, name in sums.items():
        block.add(f"{accumulated(reduction)} {name}[{count}];")
        block.add("UNROLL")
        block.add(f"for (int v = 0; v < {count}; ++v) {name}[v] = {initial(reduction)};")
    return sums


def _bytes(reduction: Accumulator) -> int:
    return memory_dtype(reduction).itemsize


class _Ahead:
    """What is read of a row while the one before is computed."""

    def __init__(self, w: ThreadWriter, block: Lines, geometry: RowGeometry, elements: Sequence[Element]) -> None:
        self.w, self.block, self.geometry = w, block, geometry
        self.arrays = {element: w.raw(element, "ahead", _span(geometry)) for element in elements}
        for array in self.arrays.values():
            block.add(array.declared(geometry.spans * geometry.width))

    def read(self, row: str, rows: int) -> None:
        """Read a row, or any where there is none."""
        kind, block = self.w.index_type, self.block
        block.open("")
        block.add(f"const {kind} wanted = {row}, ahead = wanted < {rows} ? wanted : {rows} - 1;")
        indices(block, self.geometry.kept, "ahead", kind)
        write_reading(self.w, block, self.arrays, self.geometry, declared=True)
        block.close()

    def take(self) -> None:
        """Let what was read be the row that is computed."""
        w, block, geometry = self.w, self.block, self.geometry
        for element, array in self.arrays.items():
            current = w.raw(element, "row", _span(geometry))
            count = geometry.spans * geometry.width
            block.add(current.declared(count))
            block.add("UNROLL")
            words = count // 2 if current.in_pairs else count
            block.add(f"for (int word = 0; word < {words}; ++word) {current.name}[word] = {array.name}[word];")
            w.kept[element] = current


def _write_across(
    w: ThreadWriter, block: Lines, across: SweepForColumns, sums: dict[Accumulator, str], geometry: RowGeometry
) -> None:
    open_spans(w, block, geometry)
    write_indices(block, geometry, w.index_type)
    span = Span(geometry.reduced[-1], geometry.width, "first", "", "span")

    def take(inside: Lines, one: Accumulate, text: str, condition: str) -> None:
        name = f"{sums[one.into]}[span * {geometry.width} + v]"
        inside.add(f"{name} = {combined(one.into, name, text)};")

    w.body(block, across.body, span, take)
    close_spans(block, geometry)


def _put_together(
    w: ThreadWriter, block: Lines, kernel: RowsAndColumns, sums: dict[Accumulator, str], size: int
) -> None:
    """Write what a block comes to: the sums of its teams, in order, each column's by one thread."""
    geometry = geometry_of(kernel)
    assert geometry is not None
    count, teams, kind = geometry.spans * geometry.width, geometry.teams, w.index_type
    partials, each_team = dict(kernel.partials), count * geometry.team
    block.add(f"SHARED ALIGNED(16) uint8_t all_teams[{teams * each_team * max(map(_bytes, sums))}];")
    for place, (reduction, name) in enumerate(sums.items()):
        shared, of = w.fresh(f"{reduction.hint}_teams"), accumulated(reduction)
        block.open("")
        block.add(f"{of} (*{shared})[{each_team}] = ({of} (*)[{each_team}])all_teams;")
        if place:  # others may still read what was here
            block.add("__syncthreads();")
        open_spans(w, block, geometry)
        block.add("UNROLL")
        block.add(
            f"for (int v = 0; v < {geometry.width}; ++v) "
            f"{shared}[team][at * {geometry.width} + v] = {name}[span * {geometry.width} + v];"
        )
        close_spans(block, geometry)
        block.add("__syncthreads();")
        block.open(f"for (int column = threadIdx.x; column < {size}; column += {geometry.threads})")
        block.add(f"{of} whole = {shared}[0][column];")
        block.add("UNROLL")
        each = combined(reduction, "whole", f"{shared}[one][column]")
        block.add(f"for (int one = 1; one < {teams}; ++one) whole = {each};")
        block.add(f"{w.pointer(partials[reduction])}[({kind})blockIdx.x * {size} + column] = whole;")
        block.close()
        block.close()


def _write_parts(
    w: ThreadWriter, block: Lines, kernel: RowsAndColumns, sums: dict[Accumulator, str], geometry: RowGeometry
) -> None:
    partials, size, width = dict(kernel.partials), geometry.reduced[-1].size, geometry.width
    open_spans(w, block, geometry)
    block.add(f"const {w.index_type} place = ({w.index_type})blockIdx.x * {size} + at * {width};")
    for reduction, name in sums.items():
        pointer, kind = w.pointer(partials[reduction]), accumulated(reduction)
        each = max(1, min(width, 16 // partials[reduction].dtype.itemsize))
        if each == 1:
            block.add(f"for (int v = 0; v < {width}; ++v) {pointer}[place + v] = {name}[span * {width} + v];")
            continue
        block.add("UNROLL")
        block.add(
            f"for (int v = 0; v < {width}; v += {each}) "
            f"store_{kind}_{each}({pointer} + place + v, {name} + span * {width} + v, 1, {each});"
        )
    close_spans(block, geometry)
