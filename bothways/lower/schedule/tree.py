"""The loop tree: what a kernel does, as loops, values and stores, in no language. Dialects spell it; ``str`` prints it.

A kernel goes over its rows (the kept loops). For each row it sweeps over the reduced loops, once or several times, and
takes values into accumulators, stores results, or both; what a row has computed is there for the next sweep. Without
reduced loops it goes over all elements, along lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bothways.lower.ir.prims import Memory
from bothways.lower.ir.sizes import Size
from bothways.lower.schedule.loops import Loop

# Expressions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Computed:
    """A value that has a name, which no other value of the kernel has."""

    name: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Literal:
    """A number of the program; ``as_stored`` when it is rounded to its dtype, as memory would hold it."""

    number: Any
    dtype: torch.dtype
    as_stored: bool

    def __str__(self) -> str:
        return f"{short(self.dtype)}({self.number})" if self.as_stored else str(self.number)


@dataclass(frozen=True)
class Count:
    """A position: the index that loops have together, the outermost first. With each comes its size."""

    parts: tuple[tuple[Loop, Any], ...]

    def __str__(self) -> str:
        text = ""
        for loop, size in self.parts:
            text = f"({text} * {size} + {loop.index})" if text else loop.index
        return text or "0"


@dataclass(frozen=True)
class Apply:
    """A primitive operation; ``dtype`` is that of its arguments, of the last where they differ."""

    op: str
    dtype: torch.dtype
    args: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"


@dataclass(frozen=True)
class Convert:
    """A value of one dtype as another; of half precision as the same: rounded, as memory would hold it."""

    source: torch.dtype
    target: torch.dtype
    arg: Expression

    def __str__(self) -> str:
        return f"{short(self.target)}({self.arg})"


@dataclass(frozen=True)
class ComputedIndex:
    """A computed index into a dimension of so many elements, from the end where it is negative; it is the same along
    all loops but these."""

    index: Expression
    size: Any
    stride: Any
    loops: tuple[Loop, ...]

    def __str__(self) -> str:
        return f"wrapped({self.index}, {self.size}) * {self.stride}"


@dataclass(frozen=True)
class Element:
    """One element of a memory at each index: how far each loop steps from the offset."""

    memory: Memory
    offset: Any
    steps: tuple[tuple[Loop, Any], ...]
    taken: ComputedIndex | None = None

    def moves_along(self, loop: Loop) -> bool:
        return self.taken is not None or any(own.inner == loop.inner for own, _ in self.steps)

    def __str__(self) -> str:
        terms = [str(self.offset)] if self.offset else []
        terms += [loop.index if step == 1 else f"{loop.index} * {step}" for loop, step in self.steps]
        terms += [str(self.taken)] if self.taken is not None else []
        return f"{self.memory.name}[{' + '.join(terms) or '0'}]"


@dataclass(frozen=True)
class Load:
    """What is in memory."""

    element: Element
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"load {self.element}"


@dataclass(frozen=True, eq=False)
class Scratch:
    """Memory for one value at each index of a sweep, which a row keeps for the next; as a statement, its start."""

    hint: str
    dtype: torch.dtype
    length: Any

    def __str__(self) -> str:
        return f"scratch {self.hint}: {short(self.dtype)}[{self.length}]"


@dataclass(frozen=True)
class FromScratch:
    """What an earlier sweep kept at this index."""

    scratch: Scratch
    loops: tuple[Loop, ...]

    def __str__(self) -> str:
        return f"{self.scratch.hint}[{place_in_row(self.loops)}]"


# Where in memory an element is that may be any.
ANYWHERE = ComputedIndex(Literal(0, torch.int64, False), 0, 0, ())

Expression = Computed | Literal | Count | Apply | Convert | Load | FromScratch

# Statements --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Let:
    """A value, computed once for each index."""

    value: Computed
    expression: Expression

    def lines(self) -> Iterator[str]:
        yield f"{self.value}: {short(self.value.dtype)} = {self.expression}"


@dataclass(frozen=True)
class Store:
    """``is_rounded`` where the value is one that memory holds as it is."""

    element: Element
    dtype: torch.dtype
    value: Expression
    is_rounded: bool

    def lines(self) -> Iterator[str]:
        yield f"store {self.element} = {self.value}"


@dataclass(frozen=True)
class Keep:
    """Put a value into scratch memory."""

    scratch: Scratch
    loops: tuple[Loop, ...]
    value: Expression

    def lines(self) -> Iterator[str]:
        yield f"keep {self.scratch.hint}[{place_in_row(self.loops)}] = {self.value}"


@dataclass(frozen=True, eq=False)
class Accumulator:
    """What a sweep reduces values into: ``op`` over values of dtype ``of``, to one of ``dtype``."""

    hint: str
    op: str
    dtype: torch.dtype
    of: torch.dtype

    def __str__(self) -> str:
        return f"{self.hint} by {self.op}"


@dataclass(frozen=True)
class Accumulate:
    """Take one more value in."""

    into: Accumulator
    value: Expression

    def lines(self) -> Iterator[str]:
        yield f"accumulate {self.into} of {self.value}"


@dataclass(frozen=True)
class RowValue:
    """A value of the row, ``kept`` for the sweeps to come: ``result``, of what ``body`` computes."""

    kept: Computed
    body: tuple[Let, ...]
    result: Computed
    store: Store | None

    def lines(self) -> Iterator[str]:
        for let in self.body:
            yield from let.lines()
        if self.kept is not self.result:
            yield f"{self.kept}: {short(self.kept.dtype)} = {self.result}"
        if self.store is not None:
            yield from self.store.lines()


@dataclass(frozen=True)
class Total:
    """What a sweep has accumulated, as a value of the row."""

    value: Computed
    accumulator: Accumulator
    store: Store | None

    def lines(self) -> Iterator[str]:
        yield f"{self.value}: {short(self.value.dtype)} = total {self.accumulator}"
        if self.store is not None:
            yield from self.store.lines()


@dataclass(frozen=True)
class Threads:
    """Marks iterations that may run at the same time: with so much to do, if that is at least so much."""

    work: Any
    least: int

    def __str__(self) -> str:
        return f", parallel where {self.work} >= {self.least}" if isinstance(self.work, Size) else ", parallel"


Inner = Let | Store | Keep | Accumulate


@dataclass(frozen=True)
class Lanes:
    """A loop whose iterations do the same to elements side by side."""

    loop: Loop
    body: tuple[Inner, ...]
    threads: Threads | None = None

    def lines(self) -> Iterator[str]:
        yield f"for {self.loop.index} < {self.loop.size}{self.threads or ''}:"
        yield from indented(self.body)


@dataclass(frozen=True)
class Sweep:
    """Goes over all reduced loops of a row. With threads, only where the row is all there is."""

    loops: tuple[Loop, ...]
    accumulators: tuple[Accumulator, ...]
    body: tuple[Inner, ...]
    threads: Threads | None = None

    def lines(self) -> Iterator[str]:
        indices = ", ".join(f"{loop.index} < {loop.size}" for loop in self.loops)
        yield f"sweep {indices}{self.threads or ''}:"
        yield from indented(self.body)


@dataclass(frozen=True)
class Rows:
    """Goes over rows, which may be those of several loops."""

    loops: tuple[Loop, ...]
    body: tuple[Statement, ...]
    threads: Threads | None = None

    def lines(self) -> Iterator[str]:
        indices = ", ".join(f"{loop.index} < {loop.size}" for loop in self.loops)
        yield f"rows {indices}{self.threads or ''}:"
        yield from indented(self.body)


@dataclass(frozen=True)
class Columns:
    """Goes over rows whose elements are far apart in memory: ``width`` of them side by side, along ``lanes``."""

    loops: tuple[Loop, ...]
    lanes: Loop
    width: int
    body: tuple[Statement, ...]
    threads: Threads | None = None

    def lines(self) -> Iterator[str]:
        indices = ", ".join(f"{loop.index} < {loop.size}" for loop in (*self.loops, self.lanes))
        yield f"columns {indices}, {self.width} side by side{self.threads or ''}:"
        yield from indented(self.body)


@dataclass(frozen=True)
class Matrix:
    """All elements of a matrix, or of a row that is repeated, in memory; of as many dimensions as you like where they
    are not multiplied."""

    memory: Memory
    offset: Any
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]

    @property
    def element(self) -> Element:
        """Any of them."""
        return Element(self.memory, self.offset, (), ANYWHERE)

    def __str__(self) -> str:
        return f"{self.memory.name}[{self.offset}: {list(self.shape)} by {list(self.strides)}]"


@dataclass(frozen=True)
class Product:
    """A product of two matrices of floats, to which another may be added that is there first: a kernel of its own."""

    left: Matrix
    right: Matrix
    added: Matrix | None
    into: Matrix

    def accesses(self) -> list[Load | Store]:
        """What it reads and writes, in order."""
        read = [one for one in (self.added, self.left, self.right) if one is not None]
        value = Literal(0, self.into.memory.dtype, False)
        stored = Store(self.into.element, self.into.memory.dtype, value, False)
        return [*(Load(one.element, one.memory.dtype) for one in read), stored]

    def lines(self) -> Iterator[str]:
        added = "" if self.added is None else f"{self.added} + "
        yield f"{self.into} = {added}{self.left} @ {self.right}"


@dataclass(frozen=True)
class Added:
    """Elements that are added along one dimension where an index of their shape says, in order, to others or to a
    number that are there first: a kernel of its own."""

    into: Matrix
    first: Matrix | Literal
    dim: int
    index: Matrix
    source: Matrix

    def accesses(self) -> list[Load | Store]:
        """What it reads and writes, in order: first it has all that is there first, each element at its place."""
        steps: list[Load | Store] = [Load(one.element, one.memory.dtype) for one in (self.index, self.source)]
        whole = Element(self.into.memory, 0, ())
        if isinstance(self.first, Matrix):
            is_alike = (self.first.offset, self.first.strides) == (0, self.into.strides)
            steps.append(Load(replace(whole, memory=self.first.memory) if is_alike else self.first.element, self.dtype))
        return [*steps, Store(whole, self.dtype, Literal(0, self.dtype, False), False)]

    @property
    def dtype(self) -> torch.dtype:
        return self.into.memory.dtype

    def lines(self) -> Iterator[str]:
        yield f"{self.into} = {self.first} + {self.source} along {self.dim} at {self.index}"


Statement = Scratch | RowValue | Sweep | Total | Lanes | Rows | Columns | Product | Added | Inner


@dataclass(frozen=True, eq=False)
class Kernel:
    """Reads and writes memories: those that are ``written`` come last. ``hint`` and ``origins`` are for people."""

    memories: tuple[Memory, ...]
    written: frozenset[Memory]
    body: tuple[Statement, ...]
    hint: str
    origins: tuple[str, ...]
    names: dict[str, int] = field(repr=False)  # how often the names of values begin in each way

    @property
    def is_parallel(self) -> bool:
        return any(getattr(part, "threads", None) is not None for part in self.body)

    def __str__(self) -> str:
        taken = [f"{memory.name}: {short(memory.dtype)}{list(memory.shape)}" for memory in self.memories]
        first = len(taken) - len(self.written)
        head = f"kernel {self.hint}({', '.join(taken[:first])}) -> {', '.join(taken[first:])}"
        return "\n".join([head, *indented(self.body)])


def place_in_row(loops: tuple[Loop, ...]) -> str:
    """How many elements of the row come before the one at the indices of its loops."""
    return str(Count(tuple((loop, loop.size) for loop in loops)))


def indented(body: tuple[Any, ...]) -> Iterator[str]:
    """The lines of statements, as the inside of another."""
    for part in body:
        for line in [str(part)] if isinstance(part, Scratch) else part.lines():
            yield f"    {line}"


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
