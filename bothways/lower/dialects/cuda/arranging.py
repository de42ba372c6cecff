"""How the threads of a GPU share a kernel out, by its sizes: tables and a few rules, no tuning run.

Where rows are few and long, or columns are, a reduction takes two passes: blocks reduce parts, whose results are put
together in order by whoever needs them. Nothing depends on which block is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bothways.lower.dialects.cuda.emit import lies_as_vector, memory_dtype, product
from bothways.lower.ir.prims import Memory
from bothways.lower.ir.sizes import Size, size_hint
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.memory import size_of
from bothways.lower.schedule.tree import (
    Accumulator,
    Apply,
    Columns,
    Element,
    Kernel,
    Lanes,
    Let,
    Load,
    Rows,
    RowValue,
    Scratch,
    Statement,
    Store,
    Sweep,
    Total,
)
from bothways.ops import PRIMITIVES

PROCESSORS = 132  # what a GPU of today has; others have their share of the same blocks
THREADS = 256  # of a block, where nothing speaks for another number
WIDEST = 8  # elements that a thread takes at once
VECTOR = 16  # bytes that it reads at once
REGISTERS = 80  # of 32 bits, that what is kept of a row may take in a thread
REGISTERS_OF_MANY = 24  # the same in blocks of as many threads as there can be
SPAN_OF_ROW = 4  # vectors of a row that one thread takes, where there are as many
WARP = 32
KEPT_BY_WARP = 48  # numbers of rows that a thread keeps, above which two warps take a row and not one
LONG_CODE = (
    1500  # operations that one thread spells out one after the other: compilers take a second for ten times more
)
FEW_BLOCKS = 2 * PROCESSORS  # below which a reduction is split
SHARED_BYTES = 48 << 10  # of memory, that the threads of a block share
MANY_TILES = 8  # of columns
MANY_BLOCKS, SECTOR = 64, 8  # of what puts columns together, and numbers of single precision that are read at once
MOST_PARTS = 256  # of columns
LARGE = 1 << 23  # elements that no cache holds
# Columns that are swept more than once: what is read side by side is as little as memory is read in, so that there are
# blocks without many parts, of which each block puts together all. A sweep is as long as a thread takes to read a few.
ALONE = 512  # rows up to which a block takes all of its columns, and one kernel does for every sweep
BYTES_ALONE, BYTES_OF_PART = 32, 64  # of a row, that a block takes
TURNS = 4  # rows that a thread reads at once
LEAST_THREADS, MOST_THREADS = 128, 1024  # of a block that is alone
LEAST_PART = 1024  # vectors of a row that are worth a block of their own
LONG_ROW = 8192  # vectors of a row that take longer than a second pass does
INT_LIMIT = 2**31 - 2**27  # up to which indices are 32 bits wide


@dataclass(frozen=True, eq=False)
class Phase(Kernel):
    """A part of a kernel: the sweep of one stage over parts of rows, after what earlier stages left is put together.

    The last one has no sweep when there is nothing but results to put together.
    """

    stage: int = 0
    splits: int = 1
    partials: dict[Accumulator, Memory] = field(default_factory=dict)

    @property
    def statements(self) -> list[tuple[Statement, bool]]:
        """What it does, and whether it is the one that stores what that computes."""
        first = self.body[0]
        return list(statements_of_phase(first.body if isinstance(first, (Rows, Columns)) else self.body, self.stage))


def arranged(kernel: Kernel) -> list[Kernel]:
    """The kernels that do what one does."""
    first = kernel.body[0]
    if isinstance(first, Columns):
        splits, rows = column_geometry(first).splits, product((*first.loops, first.lanes))
        return [kernel] if splits == 1 else list(phases_of(kernel, first.body, splits, rows))
    if not any(isinstance(part, Sweep) for part in statements_of_row(kernel)):
        return [kernel]
    row = row_geometry(kernel)
    if row.splits == 1:
        return [kernel]
    return list(phases_of(kernel, statements_of_row(kernel), row.splits, product(row.kept)))


def statements_of_row(kernel: Kernel) -> tuple[Statement, ...]:
    first = kernel.body[0]
    return first.body if isinstance(first, Rows) else kernel.body


def phases_of(kernel: Kernel, body: Sequence[Statement], splits: int, rows: int) -> list[Phase]:
    """The phases of a kernel whose reductions are of so many parts."""
    sweeps = [part for part in body if isinstance(part, Sweep)]
    partials = {
        accumulator: Memory(f"{accumulator.hint}_parts", memory_dtype(accumulator), (splits * rows,), (1,))
        for sweep in sweeps
        for accumulator in sweep.accumulators
    }
    stages = len(sweeps) + bool(sweeps[-1].accumulators)
    phases: list[Phase] = []
    for stage in range(stages):
        elements = list(_elements_of_phase(body, stage))
        used = dict.fromkeys(element.memory for element, _ in elements)
        written = {element.memory for element, writes in elements if writes}
        own = [partials[accumulator] for sweep in sweeps[stage : stage + 1] for accumulator in sweep.accumulators]
        read = [partials[accumulator] for sweep in sweeps[:stage] for accumulator in sweep.accumulators]
        outside = [memory for memory in used if memory not in written]
        memories = (*outside, *read, *(memory for memory in used if memory in written), *own)
        phases.append(
            Phase(
                memories,
                frozenset((*written, *own)),
                kernel.body,
                f"{kernel.hint}_{stage}",
                kernel.origins,
                kernel.names,
                stage,
                splits,
                partials,
            )
        )
    return phases


def statements_of_phase(body: Iterable[Statement], stage: int) -> Iterator[tuple[Statement, bool]]:
    """What a phase does: its statements, and whether it is the one that stores what they compute."""
    sweeps = 0
    for part in body:
        if isinstance(part, Sweep):
            if sweeps == stage:
                yield part, True
                return
            sweeps += 1
        elif not isinstance(part, Scratch):
            yield part, sweeps == stage


def _elements_of_phase(body: Sequence[Statement], stage: int) -> Iterator[tuple[Element, bool]]:
    for part, stores in statements_of_phase(body, stage):
        for element, writes in elements_in(part):
            if stores or not writes:
                yield element, writes


def elements_in(part: Statement) -> Iterator[tuple[Element, bool]]:
    """The elements that a statement reads, and those it writes."""
    match part:
        case Let():
            if isinstance(part.expression, Load):
                yield part.expression.element, False
        case Store():
            yield part.element, True
        case RowValue():
            for let in part.body:
                yield from elements_in(let)
            if part.store is not None:
                yield part.store.element, True
        case Total():
            if part.store is not None:
                yield part.store.element, True
        case Sweep() | Lanes() | Rows() | Columns():
            for inside in part.body:
                yield from elements_in(inside)


# Vectors.


def width_along(loop: Loop, body: Iterable[Statement], exact: bool) -> int:
    """How many elements a thread takes at once: as many as most of what it reads and writes has in one vector.

    With ``exact`` the loop has no rest.
    """
    body = list(body)
    both = [(element, writes) for part in body for element, writes in elements_in(part) if element.moves_along(loop)]
    elements = [element for element, _ in both]
    written = [element for element, writes in both if writes]
    sizes = {element.memory.dtype.itemsize for element in elements if lies_as_vector(element, loop, 2)}
    if not sizes:
        return 1
    width = min(WIDEST, VECTOR // min(sizes))
    while width > 1:
        fits = not exact or (type(loop.size) is int and loop.size % width == 0)
        vectors = sum(lies_as_vector(element, loop, width) for element in elements)
        short = width <= 2 or work_in(body) * width <= LONG_CODE
        fits = fits and all(lies_as_vector(element, loop, width) for element in written)
        if fits and 2 * vectors >= len(elements) and len(set(elements)) * width <= 128 and short:
            return width
        width //= 2
    return 1


def work_in(body: Iterable[Statement]) -> int:
    """About how many instructions statements are."""
    work = 0
    for part in body:
        if isinstance(part, Let):
            expression = part.expression
            work += 12 if isinstance(expression, Apply) and PRIMITIVES[expression.op].is_expensive else 1
    return work


def index_type(kernel: Kernel) -> str:
    """The type of indices: the narrower one where every element of every memory is sure to be within its range."""
    loops = [loop for part in kernel.body for loop in _loops(part)]
    sizes: list[Any] = [product(loops), *(size_of(memory) // memory.dtype.itemsize for memory in kernel.memories)]
    return "int64_t" if any(isinstance(size, Size) or size >= INT_LIMIT for size in sizes) else "int"


def _loops(part: Statement) -> Iterator[Loop]:
    match part:
        case Rows():
            yield from part.loops
            yield from dict.fromkeys(loop for inside in part.body for loop in _loops(inside))
        case Columns():
            yield from (*part.loops, part.lanes)
            yield from dict.fromkeys(loop for inside in part.body for loop in _loops(inside))
        case Lanes():
            yield part.loop
        case Sweep():
            yield from part.loops


# Rows.


@dataclass(frozen=True)
class RowGeometry:
    """How rows are reduced: ``team`` threads take a row, each ``spans`` vectors of it, 0 where that is not known or too
    much to keep in registers; a block has ``threads``."""

    kept: tuple[Loop, ...]
    reduced: tuple[Loop, ...]
    width: int
    team: int
    spans: int
    threads: int
    splits: int = 1
    turns: bool = False  # whether a team takes one row after the other

    @property
    def teams(self) -> int:
        return self.threads // self.team

    @property
    def vectors(self) -> int:
        """Those of a row."""
        *outer, inner = self.reduced
        return product(outer) * (-(-inner.size // self.width) if self.width > 1 else inner.size)

    @property
    def is_exact(self) -> bool:
        """Whether every thread has as many vectors as any other."""
        return not isinstance(self.vectors, Size) and self.spans * self.team == self.vectors

    def of_sweep(self, sweep: Sweep) -> RowGeometry:
        """The same with vectors as one sweep likes them, where no row is kept for the next."""
        width = width_along(self.reduced[-1], sweep.body, exact=len(self.reduced) > 1)
        return self if self.spans else replace(self, width=width)


def row_geometry(kernel: Kernel) -> RowGeometry:
    first = kernel.body[0]
    kept = first.loops if isinstance(first, Rows) else ()
    body = statements_of_row(kernel)
    reduced = next(part for part in body if isinstance(part, Sweep)).loops
    inner = [inside for part in body if isinstance(part, Sweep) for inside in part.body]
    width = width_along(reduced[-1], inner, exact=len(reduced) > 1)
    rows, length = size_hint(product(kept)), size_hint(product(reduced))
    vectors = max(1, -(-length // width))
    bytes_kept = sum(element.memory.dtype.itemsize for element in kept_elements(body, reduced[-1]))
    scratch = [part for part in body if isinstance(part, Scratch)]
    bytes_kept += sum(part.dtype.itemsize if part.dtype.itemsize > 4 else 4 for part in scratch)
    known = product(reduced)
    most = next((part.length for part in scratch), known)  # of sizes that are not known, what scratch is for
    # Rows that are kept whatever their length turns out to be have registers for the longest.
    longest = -(-most // width) if scratch and type(known) is not int else vectors
    spans_of_row = SPAN_OF_ROW if longest == vectors else 4 * SPAN_OF_ROW
    most_spans = max(1, min(spans_of_row, LONG_CODE // max(1, work_in(inner) * width)))
    team = min(1024, max(1, power_of_two(-(-longest // most_spans))))
    while team < 1024 and (
        -(-longest // team) * width * bytes_kept > 4 * REGISTERS
        or (rows * team < PROCESSORS * 512 and vectors >= 2 * team)
    ):
        team *= 2
    if team == WARP and -(-vectors // team) * width * len(kept_elements(body, reduced[-1])) > KEPT_BY_WARP:
        team *= 2
    splits = 1
    if not scratch and rows * team < FEW_BLOCKS * 256 and vectors >= LONG_ROW:
        splits = max(1, min(-(-2 * FEW_BLOCKS // rows), vectors // LEAST_PART))
    spans = 0
    if type(most) is int:
        in_vectors = -(-most // width)
        spans = -(-in_vectors // team)
        most_bytes = 4 * (REGISTERS if team < 1024 else REGISTERS_OF_MANY)
        if not scratch and spans * width * bytes_kept > most_bytes:
            spans = 0
    if splits > 1 or (not spans and team > 512):
        team, spans = 512, 0
    threads = team if team > 32 else 128
    return RowGeometry(kept, reduced, width, team, spans, threads, splits)


def kept_elements(body: Sequence[Statement], lane: Loop) -> list[Element]:
    """What is kept of a row: its own elements, and others that more than one sweep reads."""
    sweeps: dict[Element, set[int]] = {}
    reduced: set[Loop] = set()
    for number, part in enumerate(body):
        if isinstance(part, Sweep):
            reduced.update(part.loops)
            for inside in part.body:
                for element, writes in elements_in(inside):
                    if not writes and element.taken is None and element.moves_along(lane):
                        sweeps.setdefault(element, set()).add(number)
    own = {element for element in sweeps if any(loop not in reduced for loop, _ in element.steps)}
    return [element for element, numbers in sweeps.items() if element in own or len(numbers) > 1]


# Columns.


@dataclass(frozen=True)
class ColumnGeometry:
    """How columns are reduced: a block is ``across`` threads wide, each with ``width`` columns, and ``down`` high."""

    width: int
    across: int
    down: int
    splits: int

    @property
    def threads(self) -> int:
        return self.across * self.down


def column_geometry(columns: Columns) -> ColumnGeometry:
    body = [inside for part in columns.body if isinstance(part, Sweep) for inside in part.body]
    width = width_along(columns.lanes, body, exact=False)
    accumulators = max(len(part.accumulators) for part in columns.body if isinstance(part, Sweep))
    while width > 1 and accumulators * width > 32:
        width //= 2
    length = max(size_hint(product(part.loops)) for part in columns.body if isinstance(part, Sweep))
    narrow = min(element.memory.dtype.itemsize for part in body for element, _ in elements_in(part))
    # Rather many tiles than wide ones, as long as the threads of a warp read whole lines of the cache.
    while width > 1 and width * narrow > 8 and size_hint(columns.lanes.size) < width * 32 * MANY_TILES:
        width //= 2
    across_all = -(-size_hint(columns.lanes.size) // width)
    threads = sharing(columns, width, THREADS)
    across = min(32, threads, power_of_two(across_all))
    down = max(1, min(threads // across, power_of_two(length)))
    across = max(across, min(threads // down, power_of_two(across_all), 256))
    blocks = size_hint(product(columns.loops)) * -(-across_all // across)
    if sum(isinstance(part, Sweep) for part in columns.body) > 1:
        if blocks < FEW_BLOCKS:
            return _narrow_geometry(columns, width, width * narrow, length)
        return ColumnGeometry(width, across, down, 1)
    splits = 1
    if blocks < FEW_BLOCKS and length >= 8 * down:
        splits = max(1, min(-(-2 * FEW_BLOCKS // blocks), -(-length // (4 * down)), MOST_PARTS))
    return ColumnGeometry(width, across, down, splits)


def _narrow_geometry(columns: Columns, width: int, vector: int, length: int) -> ColumnGeometry:
    """How columns that are swept more than once are reduced, where wide tiles of them would be few. ``vector`` is in
    bytes."""
    across_all = -(-size_hint(columns.lanes.size) // width)
    bytes_of_row, threads = BYTES_OF_PART, 2 * THREADS
    if length <= ALONE:
        bytes_of_row, threads = BYTES_ALONE, MOST_THREADS
    across = min(max(1, bytes_of_row // vector), power_of_two(across_all))
    if length <= ALONE:
        threads = min(threads, max(LEAST_THREADS, across * power_of_two(-(-length // TURNS))))
    threads = sharing(columns, width, threads)
    down = max(1, min(threads // across, power_of_two(length)))
    blocks = size_hint(product(columns.loops)) * -(-across_all // across)
    splits = 1
    if length > ALONE and blocks < FEW_BLOCKS:
        splits = 1 << max(1, min(FEW_BLOCKS // blocks, length // (TURNS * down), MOST_PARTS)).bit_length() - 1
    return ColumnGeometry(width, across, down, splits)


def finishing_geometry(columns: Columns, splits: int) -> ColumnGeometry:
    """How what the parts of columns were reduced to is put together: by more blocks where columns are few and parts
    many, as long as a sector of memory is read whole."""
    size, threads = size_hint(columns.lanes.size), sharing(columns, 1, MOST_THREADS)
    across = min(32, threads, power_of_two(size))
    while across > SECTOR and size < MANY_BLOCKS * across and splits > threads // across:
        across //= 2
    return ColumnGeometry(1, across, max(1, min(threads // max(across, SECTOR), power_of_two(splits))), splits)


def sharing(columns: Columns, width: int, threads: int) -> int:
    """So many threads, or as many as there is shared memory for what each of them has of all reductions."""
    sums = [one for part in columns.body if isinstance(part, Sweep) for one in part.accumulators]
    each = width * sum(memory_dtype(one).itemsize for one in sums)
    while threads > 1 and threads * each > SHARED_BYTES:
        threads //= 2
    return threads


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()
