"""Puts a program together: kernels that follow each other become one C function, Python calls them and ATen."""

from __future__ import annotations

import ctypes
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from bothways.lower.build import Function, Source, build
from bothways.lower.dump import dump
from bothways.lower.emit import Kernel
from bothways.lower.graph import Lowered, lower
from bothways.lower.memory import Run, memories_of, plan
from bothways.lower.prims import Extern
from bothways.lower.sizes import is_double
from bothways.lower.wrapper import GRAD_MODE_DOES_NOT_MATTER, Entry, PythonWriter, as_laid_out
from bothways.runtime.generated import Generated, keep

_count = 0


def compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], name: str = "graph", *, takes_list: bool = False
) -> Callable[..., Any]:
    """A function that does what the graph does, for inputs laid out like these. ``name`` is for people.

    With ``takes_list`` it takes one list, which it empties, so that an input is freed when it was last read.
    """
    return Program(lower(graph, inputs), name, takes_list=takes_list).run


class Program:
    """The generated Python and C of one graph."""

    def __init__(self, lowered: Lowered, name: str = "graph", *, takes_list: bool = False) -> None:
        global _count
        _count += 1
        self.name = f"<bothways native {name} {_count}>"
        self._runs = _runs(lowered)
        self._sizes = lowered.sizes
        returned = [buffer.memory for buffer in lowered.outputs if buffer is not None]
        self._plan = plan(self._runs, [*lowered.inputs, *lowered.constants, *returned])
        kernels = self._write_c()
        self.c_source = str(kernels)
        writer = PythonWriter(lowered, self._runs, self._plan, self._entries)
        writer.uses_threads = "omp parallel" in self.c_source
        self.source = writer.write(takes_list=takes_list, checks_layout=False)
        self._namespace = writer.namespace
        keep(Generated(name, {"C": self.c_source, "Python": self.source} if self.c_source else {"Python": self.source}))
        dump(name, kernels, self.source, self._namespace)
        if kernels.entries:
            self._bind(build(kernels))
        self.run = self._function(writer, takes_list)
        run: Any = self.run
        externs = [run for run in self._runs if isinstance(run, Extern)]
        run.looks_at_grad_mode = any(extern.target not in GRAD_MODE_DOES_NOT_MATTER for extern in externs)
        if takes_list:
            run._boxed_call = True

    def _function(self, writer: PythonWriter, takes_list: bool) -> Callable[..., Any]:
        """The function to call. The first call looks whether ATen lays out its results as expected."""
        linecache.cache[self.name] = (len(self.source), None, self.source.splitlines(True), self.name)
        settled: dict[str, Any] = {}
        exec(compile(self.source, self.name, "exec"), self._namespace, settled)
        run: Callable[..., Any] = settled["run"]
        if not any(isinstance(step, Extern) for step in self._runs):
            return run
        checked: dict[str, Any] = {}
        source = writer.write(takes_list=takes_list, checks_layout=True)
        exec(compile(source, self.name, "exec"), self._namespace, checked)
        first: Any = checked["run"]
        surprises: list[str] = []

        def settle() -> None:
            if not surprises:
                first.__code__ = run.__code__

        self._namespace.update(settle=settle, surprises=surprises, as_laid_out=as_laid_out)
        return first

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
                    comment = "".join(f"// {line}\n" for line in kernel.origins)
                    kernels.append(Function(comment, f"void {functions[text]}({kernel.head})", kernel.body))
            entries.append(self._entry(number, [(functions[kernel.head, kernel.body], kernel) for kernel in run]))
        return Source(tuple(kernels), tuple(entries))

    def _entry(self, number: int, kernels: list[tuple[str, Kernel]]) -> str:
        """A C function that runs kernels in order; what only they need is in its work area."""
        area = self._plan.areas[number]
        memories = [memory for memory in memories_of([kernel for _, kernel in kernels]) if memory not in area.offsets]
        name = f"run_{number}"
        parameters = [f"void *{memory.name}" for memory in memories]
        if self._sizes is not None:
            self._sizes.written.clear()
        lines = [f"    void *{memory.name} = area + {offset};" for memory, offset in area.offsets.items()]
        sizes = () if self._sizes is None else tuple(self._sizes.written)
        sizes = tuple(dict.fromkeys([*sizes, *(name for _, kernel in kernels for name in kernel.sizes)]))
        self._entries[number] = (name, memories, sizes)
        if area.size:
            parameters.append("char *area")
        parameters += [f"{'double' if is_double(name) else 'int64_t'} {name}" for name in sizes]
        lines += [
            f"    {function}({', '.join([*(memory.name for memory in kernel.memories), *kernel.sizes])});"
            for function, kernel in kernels
        ]
        return "\n".join([f"void {name}({', '.join(parameters)}) {{", *lines, "}\n"])

    def _bind(self, library: ctypes.CDLL) -> None:
        for number, (name, memories, sizes) in self._entries.items():
            function = getattr(library, name)
            count = len(memories) + bool(self._plan.areas[number].size)
            numbers = [ctypes.c_double if is_double(name) else ctypes.c_int64 for name in sizes]
            function.argtypes = [*[ctypes.c_void_p] * count, *numbers]
            function.restype = None
            self._namespace[name] = function


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
