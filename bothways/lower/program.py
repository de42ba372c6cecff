"""Puts a program together: kernels that follow each other become one C function, Python calls them and ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways.lower.build import Function, Source, build, library_key, working_tools
from bothways.lower.cache import Cache, open_cache
from bothways.lower.emit import Kernel
from bothways.lower.entries import asks_for_grad_mode
from bothways.lower.entry_source import FRACTION, NUMBER, POINTER
from bothways.lower.graph import Lowered, lower
from bothways.lower.keys import program_key
from bothways.lower.memory import Run, memories_of, plan
from bothways.lower.names import in_c
from bothways.lower.prims import Extern
from bothways.lower.recall import recall
from bothways.lower.sizes import is_double
from bothways.lower.spelling import NotSpelled, spelled
from bothways.lower.text import Text, store
from bothways.lower.toolchain import Toolchain
from bothways.lower.wrapper import Entry, PythonWriter
from bothways.runtime.compiled_graph import described
from bothways.source_text import in_comment


def compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], name: str = "graph", *, takes_list: bool = False
) -> Callable[..., Any]:
    """A function that does what the graph does, for inputs laid out like these. ``name`` is for people.

    With ``takes_list`` it takes one list, which it empties, so that an input is freed when it was last read.
    The ``key`` among its facts is what it can be recalled by.
    """
    cache = open_cache()
    place = None if cache is None else _place(cache, graph, inputs, f"{name} {takes_list}")
    run = None if place is None else recall(place.cache, place.key, len(inputs), _count_of_outputs(graph))
    if run is None:
        run = Program(lower(graph, inputs), name, takes_list=takes_list, place=place).run
    return described(run, key=None if place is None else place.key)


def _count_of_outputs(graph: torch.fx.GraphModule) -> int:
    [output] = graph.graph.find_nodes(op="output")
    outputs = output.args[0]
    return len(outputs) if isinstance(outputs, (tuple, list)) else 1


@dataclass(frozen=True)
class Place:
    """Where a program is kept: what it was made with, which cache, under which key."""

    tools: Toolchain
    cache: Cache
    key: str


def _place(cache: Cache, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], kind: str) -> Place | None:
    if not all(isinstance(value, torch.Tensor) for value in inputs):
        return None  # what the sizes stand for is known to this process alone
    tools = working_tools(cache)
    try:
        return Place(tools, cache, program_key(graph, inputs, kind, tools))
    except NotSpelled:
        return None


class Program:
    """The generated Python and C of one graph."""

    def __init__(
        self, lowered: Lowered, name: str = "graph", *, takes_list: bool = False, place: Place | None = None
    ) -> None:
        self._runs = _runs(lowered)
        self._sizes = lowered.sizes
        returned = [buffer.memory for buffer in lowered.outputs if buffer is not None]
        self._plan = plan(self._runs, [*lowered.inputs, *lowered.constants, *returned])
        kernels = self._write_c()
        self.c_source = str(kernels)
        writer = PythonWriter(lowered, self._runs, self._plan, self._entries)
        writer.uses_threads = "omp parallel" in self.c_source
        self.source = writer.write(takes_list=takes_list, checks_layout=False)
        externs = [run for run in self._runs if isinstance(run, Extern)]
        first = writer.write(takes_list=takes_list, checks_layout=True) if externs else ""
        self._text = Text(
            name, self.source, self.c_source,
            {name: self._arguments(number) for number, (name, *_) in self._entries.items()},
            takes_list, any(asks_for_grad_mode(extern.target) for extern in externs),
            lowered.operations, len(externs), len(lowered.steps) - len(externs),
        )  # fmt: skip
        self._names = dict(writer.namespace)
        self._text.show(self._names)
        library = build(kernels) if kernels.entries else None
        self.run = self._text.function(writer.namespace, library, first, lambda: self._keep(kernels, place))
        self._text.tell()
        if not first:
            self._keep(kernels, place)

    def _keep(self, kernels: Source, place: Place | None) -> None:
        """Write the program down for other processes, unless the compiler turned out to work otherwise."""
        if place is None or working_tools(place.cache) != place.tools:
            return
        try:
            names = {name: spelled(value) for name, value in self._names.items()}
        except NotSpelled:
            return
        library = library_key(kernels, place.tools) if kernels.entries else ""
        store(place.cache, place.key, self._text, names, library)

    def _arguments(self, number: int) -> str:
        _, memories, sizes = self._entries[number]
        numbers = (FRACTION if is_double(name) else NUMBER for name in sizes)
        return POINTER * (len(memories) + bool(self._plan.areas[number].size)) + "".join(numbers)

    # C: kernels that follow each other are called together.

    def _write_c(self) -> Source:
        self._entries: dict[int, Entry] = {}
        functions: dict[tuple[str, str], str] = {}  # kernels of the same text are one function
        kernels: list[Function] = []
        entries: list[str] = []
        for number, run in enumerate(self._runs):
            if not isinstance(run, list):
                continue
            for kernel in run:
                text = (kernel.head, kernel.body)
                if text not in functions:
                    functions[text] = f"kernel_{len(functions)}_{kernel.hint}"
                    comment = "".join(f"// {in_comment(line)}\n" for line in kernel.origins)
                    kernels.append(Function(comment, f"void {functions[text]}({kernel.head})", kernel.body))
            entries.append(self._entry(number, [(functions[kernel.head, kernel.body], kernel) for kernel in run]))
        return Source(tuple(kernels), tuple(entries))

    def _entry(self, number: int, kernels: list[tuple[str, Kernel]]) -> str:
        """A C function that runs kernels in order; what only they need is in its work area."""
        area = self._plan.areas[number]
        memories = [memory for memory in memories_of([kernel for _, kernel in kernels]) if memory not in area.offsets]
        entry = f"run_{number}"
        if self._sizes is not None:
            self._sizes.written.clear()
        # Each pointer is taken where it is first used: compilers would have to keep hundreds of them over every call.
        pointers = {memory: f"given[{index}].pointer" for index, memory in enumerate(memories)}
        pointers |= {memory: f"area + {offset}" for memory, offset in area.offsets.items()}
        sizes = () if self._sizes is None else tuple(self._sizes.written)
        sizes = tuple(dict.fromkeys([*sizes, *(name for _, kernel in kernels for name in kernel.sizes)]))
        self._entries[number] = (entry, memories, sizes)
        taken = ["char *area = given[{}].pointer;"] if area.size else []
        for name in sizes:
            kind, member = ("double", "fraction") if is_double(name) else ("int64_t", "number")
            taken.append(f"{kind} {name} = given[{{}}].{member};")
        lines = [f"    {line.format(index)}" for index, line in enumerate(taken, len(memories))]
        for function, kernel in kernels:
            given = [memory for memory in kernel.memories if memory in pointers]
            lines += [f"    void *{in_c(memory.name)} = {pointers.pop(memory)};" for memory in given]
            arguments = [*(in_c(memory.name) for memory in kernel.memories), *kernel.sizes]
            lines.append(f"    {function}({', '.join(arguments)});")
        return "\n".join([f"void {entry}(const Given *given) {{", *lines, "}\n"])


def _runs(lowered: Lowered) -> list[Run]:
    """The steps, with kernels that follow each other together."""
    runs: list[Run] = []
    for step in lowered.steps:
        if isinstance(step, Extern):
            runs.append(step)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(step)
        else:
            runs.append([step])
    return runs
