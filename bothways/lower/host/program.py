"""Puts a program together: routines of kernels in one dialect, and the Python that calls them and ATen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways.cache.disk import Cache, open_cache
from bothways.cache.keys import program_key
from bothways.cache.spelling import NotSpelled, spelled
from bothways.calls.entry_source import FRACTION, NUMBER, POINTER
from bothways.lower.host.dialect import Dialect, Spelled
from bothways.lower.host.entries import asks_for_grad_mode
from bothways.lower.host.recall import recall
from bothways.lower.host.text import Text, store
from bothways.lower.host.wrapper import Entry, PythonWriter
from bothways.lower.ir.prims import Extern, Memory
from bothways.lower.ir.sizes import has_fraction, size_hint
from bothways.lower.schedule.adding import with_added
from bothways.lower.schedule.products import with_products
from bothways.lower.schedule.routines import Routine, schedule
from bothways.lower.schedule.steps import Lowered, Step, lower
from bothways.lower.schedule.tree import Kernel
from bothways.runtime.compiled_graph import described


def compile_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    name: str = "graph",
    *,
    dialect: Dialect,
    takes_list: bool = False,
) -> Callable[..., Any]:
    """A function that does what the graph does, for inputs laid out like these. ``name`` is for people.

    With ``takes_list`` it takes one list, which it empties, so that an input is freed when it was last read.
    The ``key`` among its facts is what it can be recalled by.
    """
    cache = open_cache()
    place = None if cache is None else _place(cache, graph, inputs, f"{name} {takes_list}", dialect)
    run = None if place is None else recall(place.cache, place.key, len(inputs), _count_of_outputs(graph), dialect)
    if run is None:
        run = KernelProgram(lower(graph, inputs), name, dialect=dialect, takes_list=takes_list, place=place).run
    return described(run, key=None if place is None else place.key)


def _count_of_outputs(graph: torch.fx.GraphModule) -> int:
    [output] = graph.graph.find_nodes(op="output")
    outputs = output.args[0]
    return len(outputs) if isinstance(outputs, (tuple, list)) else 1


@dataclass(frozen=True)
class Place:
    """Where a program is kept: what it was made with, which cache, under which key."""

    tools: str
    cache: Cache
    key: str


def _place(
    cache: Cache, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], kind: str, dialect: Dialect
) -> Place | None:
    if not all(isinstance(value, torch.Tensor) for value in inputs):
        return None  # what the sizes stand for is known to this process alone
    tools = dialect.tools(cache)
    if tools is None:
        return None
    try:
        return Place(tools, cache, program_key(graph, inputs, kind, tools))
    except NotSpelled:
        return None


class KernelProgram:
    """The generated code of one graph: ``source`` is the Python, ``kernels`` what it calls."""

    def __init__(
        self,
        lowered: Lowered,
        name: str = "graph",
        *,
        dialect: Dialect,
        takes_list: bool = False,
        place: Place | None = None,
    ) -> None:
        self._dialect = dialect
        lowered.steps = _arranged(lowered.steps, dialect)
        scheduled = schedule(lowered, takes_list=takes_list, frame=getattr(dialect, "frame", 0))
        self.routines = tuple(scheduled.routines.values())
        self.kernels = dialect.spell(self.routines, lowered.sizes)
        entries = {number: _entry(routine, self.kernels) for number, routine in scheduled.routines.items()}
        writer = PythonWriter(lowered, scheduled.runs, scheduled.plan, entries, hasattr(dialect, "making"))
        writer.uses_threads = self.kernels.uses_threads
        self.source = writer.write(takes_list=takes_list, checks_layout=False)
        externs = [run for run in scheduled.runs if isinstance(run, Extern)]
        first = writer.write(takes_list=takes_list, checks_layout=True) if externs else ""
        kinds = {routine.name: _kinds(routine, self.kernels) for routine in self.routines}
        self._text = Text(
            name, self.source, self.kernels.text, kinds,
            takes_list, any(asks_for_grad_mode(extern.target) for extern in externs if not extern.is_check),
            lowered.operations, len(externs), len(lowered.steps) - len(externs),
            [fact for routine in self.routines for fact in _facts(routine, self.kernels)], writer.new,
        )  # fmt: skip
        self._names = dict(writer.namespace)
        self._text.show(self._names, dialect)
        functions = self.kernels.functions(kinds)
        self.run = self._text.function(writer.namespace, functions, dialect, first, lambda: self._keep(place))
        self._text.tell()
        if not first:
            self._keep(place)

    def _keep(self, place: Place | None) -> None:
        """Write the program down for other processes, unless its tools turned out to work otherwise."""
        if place is None or self._dialect.tools(place.cache) != place.tools:
            return
        try:
            names = {name: spelled(value) for name, value in self._names.items()}
        except NotSpelled:
            return
        store(place.cache, place.key, self._text, names, self.kernels.key(place.cache), self._dialect)


def _arranged(steps: Sequence[Step], dialect: Dialect) -> list[Step]:
    """The steps, with kernels that follow each other as the dialect has them."""
    arranged: list[Step] = []
    if getattr(dialect, "multiplies", False):
        steps = with_products(steps)
    if getattr(dialect, "adds_at_places", False):
        steps = with_added(steps)
    for _, together in itertools.groupby(steps, key=lambda step: isinstance(step, Extern)):
        kernels = list(together)
        arranged += dialect.arranged([one for one in kernels if isinstance(one, Kernel)]) or kernels
    return arranged


def _entry(routine: Routine, kernels: Spelled) -> Entry:
    return routine.name, list(routine.memories), kernels.sizes[routine.name]


def _facts(routine: Routine, kernels: Spelled) -> Iterator[list[Any]]:
    """Of each kernel, for people: what it is called, where it runs, bytes read and written, what it computes."""
    called: dict[str, Sequence[str]] = getattr(kernels, "called", {})
    names = called.get(routine.name) or [f"kernel_{kernel.hint}" for kernel in routine.kernels]
    for name, kernel in zip(names, routine.kernels, strict=True):
        read = sum(_bytes(memory) for memory in kernel.memories if memory not in kernel.written)
        yield [name, routine.name, read, sum(map(_bytes, kernel.written)), list(kernel.origins)]


def _bytes(memory: Memory) -> int:
    return math.prod(map(size_hint, memory.shape)) * memory.dtype.itemsize


def _kinds(routine: Routine, kernels: Spelled) -> str:
    """A letter for each argument of a routine."""
    numbers = (FRACTION if has_fraction(name) else NUMBER for name in kernels.sizes[routine.name])
    return POINTER * (len(routine.memories) + bool(routine.area.size)) + "".join(numbers)
