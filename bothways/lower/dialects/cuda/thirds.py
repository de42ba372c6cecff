"""Columns that are swept over twice, of which no cache holds what the first sweep has read: three kernels.

The first has the first sweep, in as many parts as keep a GPU busy. The second, a small one, puts these together and
computes all that is known of each column, once. The third has the second sweep, of as many blocks as pointwise kernels.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bothways.lower.dialects.cuda.arranging import (
    FEW_BLOCKS,
    THREADS,
    TURNS,
    ColumnGeometry,
    Phase,
    elements_in,
    finishing_geometry,
    power_of_two,
    sharing,
    width_along,
)
from bothways.lower.dialects.cuda.emit import memory_dtype, product
from bothways.lower.ir.prims import Memory
from bothways.lower.ir.sizes import size_hint
from bothways.lower.schedule.tree import Accumulator, Columns, Element, Kernel, Statement, Sweep

BYTES_OF_CACHE = 1 << 25  # that the first sweep reads at least
TURNS_OF_REST = 8  # rows that a thread of the third kernel takes


class Third(enum.Enum):
    """Which of the three."""

    PARTS, WHOLE, REST = range(3)


@dataclass(frozen=True, eq=False)
class ThirdPhase(Phase):
    """``wholes`` is where the second leaves for the third what was accumulated."""

    third: Third = Third.PARTS
    wholes: dict[Accumulator, Memory] = field(default_factory=dict)

    @property
    def statements(self) -> list[tuple[Statement, bool]]:
        if self.third is Third.WHOLE:
            return [one for one in super().statements if not isinstance(one[0], Sweep)]
        is_last = self.third is Third.REST  # what is known of a column is stored already
        return [(part, stores and not (is_last and not isinstance(part, Sweep))) for part, stores in super().statements]


def thirds_of(kernel: Kernel) -> list[ThirdPhase]:
    """A kernel as three, one after the other; none where it is another kind of kernel."""
    columns = kernel.body[0]
    if not isinstance(columns, Columns) or not _is_of_no_cache(columns):
        return []
    rows = product((*columns.loops, columns.lanes))
    sweep = next(part for part in columns.body if isinstance(part, Sweep))
    geometries = {third: geometry_of_third(columns, third) for third in Third}
    splits = geometries[Third.PARTS].splits

    def memories(ending: str, count: int) -> dict[Accumulator, Memory]:
        return {
            one: Memory(f"{one.hint}_{ending}", memory_dtype(one), (count * rows,), (1,)) for one in sweep.accumulators
        }

    partials, wholes = memories("parts", splits), memories("whole", 1)
    ways = {
        Third.PARTS: ((), tuple(partials.values())),
        Third.WHOLE: (tuple(partials.values()), tuple(wholes.values())),
        Third.REST: (tuple(wholes.values()), ()),
    }
    phases = []
    for third, (put_together, left) in ways.items():
        one = ThirdPhase(
            (), frozenset(), kernel.body, f"{kernel.hint}_{third.value}", kernel.origins, kernel.names,
            min(1, third.value), geometries[third].splits, partials, third, wholes,
        )  # fmt: skip
        elements = list(_elements_of(one))
        used = dict.fromkeys(element.memory for element, _ in elements)
        written = {element.memory for element, writes in elements if writes}
        outside = [memory for memory in used if memory not in written]
        own = (*outside, *put_together, *(memory for memory in used if memory in written), *left)
        phases.append(replace(one, memories=own, written=frozenset((*written, *left))))
    return phases


def _elements_of(phase: Phase) -> Iterator[tuple[Element, bool]]:
    for part, stores in phase.statements:
        yield from ((element, writes) for element, writes in elements_in(part) if stores or not writes)


def _is_of_no_cache(columns: Columns) -> bool:
    """Whether columns are swept over twice, and the first sweep reads more than stays in a cache."""
    sweeps = [part for part in columns.body if isinstance(part, Sweep)]
    if len(sweeps) != 2 or not sweeps[0].accumulators or sweeps[1].accumulators:
        return False
    loops = (*columns.loops, columns.lanes, *sweeps[0].loops)
    if any(type(loop.size) is not int for loop in loops):
        return False
    read = {element for part in sweeps[0].body for element, writes in elements_in(part) if not writes}
    whole = [element for element in read if len(element.steps) == len(loops) or element.taken is not None]
    return product(loops) * sum(element.memory.dtype.itemsize for element in whole) >= BYTES_OF_CACHE


def geometry_of_third(columns: Columns, third: Third) -> ColumnGeometry:
    """How the kernels of columns that no cache holds are shared out: rows of blocks that read whole lines."""
    sweeps = [part for part in columns.body if isinstance(part, Sweep)]
    sweep = sweeps[third is Third.REST]
    width = width_along(columns.lanes, sweep.body, exact=False)
    while width > 1 and max(1, len(sweep.accumulators)) * width > 32:
        width //= 2
    across_all = -(-size_hint(columns.lanes.size) // width)
    threads = sharing(columns, width, THREADS)
    across = min(32, threads, power_of_two(across_all))
    length = size_hint(product(sweep.loops))
    down = max(1, min(threads // across, power_of_two(length)))
    blocks = size_hint(product(columns.loops)) * -(-across_all // across)
    if third is Third.WHOLE:
        return finishing_geometry(columns, geometry_of_third(columns, Third.PARTS).splits)
    if third is Third.REST:
        return ColumnGeometry(width, across, down, max(1, length // (TURNS_OF_REST * down)))
    return ColumnGeometry(width, across, down, max(1, min(-(-2 * FEW_BLOCKS // blocks), length // (TURNS * down))))
