"""Spells a loop tree as Python: a loop for each loop, a line for each statement, each value rounded to its dtype."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

import torch

from bothways.lower.dialects.reference.numbers import COMPUTED, HIGHEST, LOWEST
from bothways.lower.dialects.reference.operators import OF_SINGLE
from bothways.lower.ir.prims import Memory
from bothways.lower.ir.sizes import Fraction, Size, SizeNames
from bothways.lower.schedule.kernels import fresh_name
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.routines import Routine
from bothways.lower.schedule.tree import (
    Accumulate,
    Accumulator,
    Added,
    Apply,
    Columns,
    Computed,
    Convert,
    Count,
    Element,
    Expression,
    FromScratch,
    Keep,
    Kernel,
    Lanes,
    Let,
    Literal,
    Load,
    Product,
    Rows,
    RowValue,
    Scratch,
    Statement,
    Store,
    Sweep,
    Total,
    place_in_row,
    short,
)
from bothways.source_text import in_comment

HALVES = ("bfloat16", "float16")


class KernelInPython:
    """Writes one kernel as a Python function of the cells of its memories."""

    def __init__(self, kernel: Kernel) -> None:
        self.lines: list[str] = []
        self._depth = 1
        self._names = dict(kernel.names)
        self._given: dict[Scratch | Accumulator, str] = {}
        self.statements(kernel.body)

    def _add(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    def _name(self, thing: Scratch | Accumulator) -> str:
        if thing not in self._given:
            hint = f"{thing.hint}_total" if isinstance(thing, Accumulator) else thing.hint
            self._given[thing] = fresh_name(self._names, hint)
        return self._given[thing]

    def _nested(self, loops: Iterable[Loop], body: Sequence[Statement]) -> None:
        depth = self._depth
        for loop in loops:
            self._add(f"for {loop.index} in range({loop.size}):")
            self._depth += 1
        self.statements(body)
        self._depth = depth

    def statements(self, body: Sequence[Statement]) -> None:
        for part in body:
            self._statement(part)

    def _statement(self, part: Statement) -> None:
        match part:
            case Rows():
                self._nested(part.loops, part.body)
            case Columns():
                self._nested((*part.loops, part.lanes), part.body)
            case Lanes():
                self._nested((part.loop,), part.body)
            case Sweep():
                for reduction in part.accumulators:
                    self._add(f"{self._name(reduction)} = {initial(reduction)}")
                self._nested(part.loops, part.body)
            case Scratch():
                self._add(f"{self._name(part)} = [None] * {part.length}")
            case Let():
                self._add(f"{part.value} = {self._rounded(part.value.dtype, part.expression)}")
            case Store():
                self._add(f"{self._element(part.element)} = {self._text(part.value)}")
            case Keep():
                self._add(f"{self._name(part.scratch)}[{place_in_row(part.loops)}] = {self._text(part.value)}")
            case Accumulate():
                name = self._name(part.into)
                self._add(f"{name} = take_{part.into.op}({name}, {self._text(part.value)})")
            case RowValue():
                self.statements(part.body)
                if part.kept is not part.result:
                    self._add(f"{part.kept} = {part.result}")
                self.statements(() if part.store is None else (part.store,))
            case Total():
                self._add(f"{part.value} = {computed(part.value.dtype)}({self._name(part.accumulator)})")
                self.statements(() if part.store is None else (part.store,))
            case Product() | Added():  # the schedule makes none for a dialect that does not ask for them
                raise TypeError(f"this dialect leaves products and sums at places to ATen: {part}")
            case _:
                assert_never(part)

    # Expressions.

    def _rounded(self, dtype: torch.dtype, value: Expression) -> str:
        text = self._text(value)
        return f"{computed(dtype)}({text})" if isinstance(value, Apply) else text

    def _text(self, value: Expression) -> str:
        match value:
            case Computed() | Count():
                return str(value)
            case Literal():
                return literal(value)
            case Load():
                return self._element(value.element)
            case FromScratch():
                return f"{self._name(value.scratch)}[{place_in_row(value.loops)}]"
            case Convert():
                return conversion(short(value.source), short(value.target), self._text(value.arg))
            case Apply():
                single = value.op in OF_SINGLE and computed(value.dtype) == "float32"
                return f"{value.op}{'_single' if single else ''}({', '.join(map(self._text, value.args))})"
            case _:
                assert_never(value)

    def _element(self, element: Element) -> str:
        terms = [str(element.offset)] if element.offset else []
        terms += [loop.index if step == 1 else f"{loop.index} * {step}" for loop, step in element.steps]
        if element.taken is not None:
            index, size = self._text(element.taken.index), element.taken.size
            terms.append(f"({index} + {size} if {index} < 0 else {index}) * {element.taken.stride}")
        return f"{cells(element.memory)}[{' + '.join(terms) or '0'}]"


def cells(memory: Memory) -> str:
    """The name of a memory's cells, which ends as no value's name does."""
    return f"{memory.name}_cells"


def computed(dtype: torch.dtype) -> str:
    return COMPUTED[short(dtype)]


def conversion(source: str, target: str, text: str) -> str:
    """A value as a dtype: another one, or its own as memory holds it."""
    if source == target and target not in HALVES:
        return text
    if "int" in target and "float" in source:
        text = f"whole({text})"
    return f"{target}({text})"


def literal(value: Literal) -> str:
    """A number of the program."""
    dtype, number = computed(value.dtype), value.number
    if not isinstance(number, (Size, Fraction)):
        number = int(number) if "int" in dtype else bool(number) if dtype == "bool" else repr(float(number))
        number = f"float('{number}')" if str(number).lstrip("-") in ("nan", "inf") else number
    text = f"{dtype}({number})"
    return conversion(short(value.dtype), short(value.dtype), text) if value.as_stored else text


def initial(reduction: Accumulator) -> str:
    """The value of nothing."""
    name = computed(reduction.of)
    start: dict[str, Any] = {
        "sum": 0,
        "prod": 1,
        "max": LOWEST.get(name, "float('-inf')"),
        "min": HIGHEST.get(name, "float('inf')"),
        "any": False,
        "all": True,
    }
    return str(start[reduction.op])


@contextmanager
def noted(names: SizeNames | None, sizes: dict[Any, tuple[str, ...]], key: Any) -> Iterator[None]:
    """Note under ``key`` which sizes are written inside."""
    if names is not None:
        names.written.clear()
    yield
    sizes[key] = () if names is None else tuple(sorted(names.written))


def spell(routines: Sequence[Routine], names: SizeNames | None) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The Python of a program's routines, and the names of the numbers that each takes besides its memories."""
    texts: list[str] = []
    sizes_of: dict[Any, tuple[str, ...]] = {}
    functions: dict[Kernel, str] = {}
    for kernel in (kernel for routine in routines for kernel in routine.kernels):
        with noted(names, sizes_of, kernel):
            lines = KernelInPython(kernel).lines
        functions[kernel] = f"kernel_{len(functions)}_{kernel.hint}"
        parameters = ", ".join([*map(cells, kernel.memories), *sizes_of[kernel]])
        comments = [f"# {in_comment(line)}" for line in kernel.origins]
        texts.append("\n".join([*comments, f"def {functions[kernel]}({parameters}):", *lines, ""]))
    for routine in routines:
        with noted(names, sizes_of, routine.name):
            places = {memory: f"area, '{short(memory.dtype)}', {at}" for memory, at in routine.area.offsets.items()}
        places |= {memory: f"{memory.name}, '{short(memory.dtype)}'" for memory in routine.memories}
        lines = [f"    {cells(memory)} = at_cells({place})" for memory, place in places.items()]
        for kernel in routine.kernels:
            lines.append(f"    {functions[kernel]}({', '.join([*map(cells, kernel.memories), *sizes_of[kernel]])})")
            sizes_of[routine.name] = tuple(dict.fromkeys([*sizes_of[routine.name], *sizes_of[kernel]]))
        area = ["area"] if routine.area.size else []
        parameters = ", ".join([*(memory.name for memory in routine.memories), *area, *sizes_of[routine.name]])
        texts.append("\n".join([f"def {routine.name}({parameters}):", *lines, ""]))
    return "\n\n".join(texts), {routine.name: sizes_of[routine.name] for routine in routines}
