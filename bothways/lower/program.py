"""Writes the Python around the kernels: allocate, call, hand over to ATen, return."""

from __future__ import annotations

import ctypes
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from bothways.lower.build import build, source_of
from bothways.lower.emit import Kernel
from bothways.lower.graph import Lowered, lower
from bothways.lower.prims import Buffer, Extern, Memory, contiguous

_count = 0


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """A function that does what the graph does, for inputs laid out like these."""
    return Program(lower(graph, inputs)).run


class Program:
    """The generated Python and C of one graph."""

    def __init__(self, lowered: Lowered) -> None:
        global _count
        _count += 1
        self.name = f"<bothways native {_count}>"
        self._lowered = lowered
        self._namespace: dict[str, Any] = {"torch": torch, "empty": torch.empty, "empty_strided": torch.empty_strided}
        self._names: dict[int, str] = {}
        self.c_source = self._write_c()
        self.source = self._write_python()
        if self.c_source:
            self._bind(build(source_of(self.c_source)))
        linecache.cache[self.name] = (len(self.source), None, self.source.splitlines(True), self.name)
        exec(compile(self.source, self.name, "exec"), self._namespace)
        self.run: Callable[..., Any] = self._namespace["run"]

    # C: kernels that follow each other are called together.

    def _write_c(self) -> str:
        self._runs: list[list[Kernel] | Extern] = []
        for step in self._lowered.steps:
            if isinstance(step, Extern):
                self._runs.append(step)
            elif self._runs and isinstance(self._runs[-1], list):
                self._runs[-1].append(step)
            else:
                self._runs.append([step])
        self._entries: dict[int, tuple[str, list[Memory]]] = {}
        functions: dict[str, str] = {}  # kernels of the same text are one function
        texts: list[str] = []
        for number, run in enumerate(self._runs):
            if not isinstance(run, list):
                continue
            for kernel in run:
                text = f"({kernel.head}) {{\n{kernel.body}\n}}"
                if text not in functions:
                    functions[text] = f"kernel_{len(functions)}_{kernel.hint}"
                    texts += [f"// {line}" for line in kernel.origins]
                    texts.append(f"static void {functions[text]}{text}\n")
            entry = [(functions[f"({kernel.head}) {{\n{kernel.body}\n}}"], kernel) for kernel in run]
            texts.append(self._entry(number, entry))
        return "\n".join(texts)

    def _entry(self, number: int, kernels: list[tuple[str, Kernel]]) -> str:
        memories = list(dict.fromkeys(memory for _, kernel in kernels for memory in kernel.memories))
        name = f"run_{number}"
        self._entries[number] = (name, memories)
        parameters = ", ".join(f"void *{memory.name}" for memory in memories)
        calls = "\n".join(
            f"    {function}({', '.join(memory.name for memory in kernel.memories)});" for function, kernel in kernels
        )
        return f"void {name}({parameters}) {{\n{calls}\n}}\n"

    def _bind(self, library: ctypes.CDLL) -> None:
        for name, memories in self._entries.values():
            function = getattr(library, name)
            function.argtypes = [ctypes.c_void_p] * len(memories)
            function.restype = None
            self._namespace[name] = function

    # Python.

    def _write_python(self) -> str:
        lowered = self._lowered
        parameters = ", ".join(memory.name for memory in lowered.inputs)
        for memory, tensor in lowered.constants.items():
            self._namespace[memory.name] = tensor
        last_use = self._last_uses()
        lines = [f"def run({parameters}):"]
        known = {*lowered.inputs, *lowered.constants}
        for number, run in enumerate(self._runs):
            if isinstance(run, list):
                name, memories = self._entries[number]
                for memory in memories:
                    if memory not in known:
                        lines.append(f"    {memory.name} = {self._allocation(memory)}")
                        known.add(memory)
                lines.append(f"    {name}({', '.join(f'{memory.name}.data_ptr()' for memory in memories)})")
            else:
                lines.append(f"    {self._call(run)}")
                known.update(memory for memory in run.results if memory is not None)
            dead = [memory.name for memory, when in last_use.items() if when == number]
            if dead:
                lines.append(f"    del {', '.join(dead)}")
        outputs = "".join(f"{'None' if buffer is None else self._tensor(buffer)}, " for buffer in lowered.outputs)
        lines.append(f"    return ({outputs})")
        return "\n".join(lines) + "\n"

    def _last_uses(self) -> dict[Memory, int]:
        """When each memory made here is used last; those that are returned are not freed."""
        last: dict[Memory, int] = {}
        for number, run in enumerate(self._runs):
            if isinstance(run, list):
                used = self._entries[number][1]
            else:
                used = [source.memory for source in run.sources() if isinstance(source, Buffer)]
                used += [memory for memory in run.results if memory is not None]
            last.update(dict.fromkeys(used, number))
        returned = {buffer.memory for buffer in self._lowered.outputs if buffer is not None}
        kept = {*self._lowered.constants, *returned, *self._lowered.inputs}
        return {memory: number for memory, number in last.items() if memory not in kept}

    def _allocation(self, memory: Memory) -> str:
        dtype = self._constant(memory.dtype)
        if memory.strides == contiguous(memory.shape):
            return f"empty({memory.shape}, dtype={dtype})"
        return f"empty_strided({memory.shape}, {memory.strides}, dtype={dtype})"

    def _call(self, extern: Extern) -> str:
        args = [self._argument(arg) for arg in extern.args]
        args += [f"{name}={self._argument(arg)}" for name, arg in extern.kwargs.items()]
        call = f"{self._constant(extern.target)}({', '.join(args)})"
        if not extern.results:
            return call
        names = [memory.name if memory is not None else "_" for memory in extern.results]
        return f"{', '.join(names)}{',' if extern.is_tuple else ''} = {call}"

    def _argument(self, value: Any) -> str:
        if isinstance(value, Buffer):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            inside = ", ".join(self._argument(item) for item in value)
            return f"[{inside}]"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        return self._constant(value)

    def _tensor(self, buffer: Buffer) -> str:
        memory = buffer.memory
        if (buffer.shape, buffer.strides, buffer.offset) == (memory.shape, memory.strides, 0):
            return memory.name
        if memory in self._lowered.inputs or memory in self._lowered.constants or isinstance(memory.producer, Extern):
            offset = f"{memory.name}.storage_offset() + {buffer.offset}"
        else:
            offset = str(buffer.offset)
        return f"{memory.name}.as_strided({buffer.shape}, {buffer.strides}, {offset})"

    def _constant(self, value: Any) -> str:
        """A name for an object that has no literal."""
        name = self._names.get(id(value))
        if name is None:
            hint = "".join(ch if ch.isalnum() else "_" for ch in str(value))[:40]
            name = self._names[id(value)] = f"_{hint}_{len(self._names)}"
            self._namespace[name] = value
        return name
