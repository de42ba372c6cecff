"""Backends for tests: they run the graph as captured and remember what they were given.

``CompileCounter`` keeps two numbers, ``CompileCounterWithBackend`` the graphs as well, ``RecordGraphs``
everything, with questions one can ask about it. None of them changes a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from bothways.backends import Backend, lookup_backend
from bothways.testing.text import normalize_gm

CALLS = ("call_function", "call_method", "call_module")


def call_nodes(gm: GraphModule) -> list[Node]:
    """The nodes of a graph that do work, in order."""
    return [node for node in gm.graph.nodes if node.op in CALLS]


class CompileCounter:
    """A backend that counts graphs (``frame_count``) and the operations in them (``op_count``).

    >>> counter = bothways.testing.CompileCounter()
    >>> _ = bothways.compile(lambda x: x.sin() + 1, backend=counter)(torch.ones(2))
    >>> counter.frame_count, counter.op_count
    (1, 2)
    """

    def __init__(self) -> None:
        self.clear()

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += len(call_nodes(gm))
        forward: Callable[..., Any] = gm.forward
        return forward

    def clear(self) -> None:
        """Start counting from zero."""
        self.frame_count = 0
        self.op_count = 0


class CompileCounterWithBackend:
    """Counts like ``CompileCounter``, keeps the graphs, and hands them on to another backend.

    - ``backend``: the other backend, by name or as a function.

    >>> counter = bothways.testing.CompileCounterWithBackend("native")
    >>> _ = bothways.compile(lambda x: x.sin() + 1, backend=counter)(torch.ones(2))
    >>> counter.frame_count, len(counter.graphs)
    (1, 1)
    """

    def __init__(self, backend: str | Backend) -> None:
        self.backend, self._compile = backend, lookup_backend(backend)  # a wrong name raises here
        self.clear()

    def __call__(self, gm: GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += len(call_nodes(gm))
        self.graphs.append(gm)
        return self._compile(gm, example_inputs)

    def clear(self) -> None:
        """Start counting from zero and forget the graphs."""
        self.frame_count = 0
        self.op_count = 0
        self.graphs: list[GraphModule] = []


@dataclass(frozen=True)
class Record:
    """One graph a backend was given, with the inputs it was given as examples."""

    gm: GraphModule
    example_inputs: tuple[Tensor, ...]

    @property
    def inputs(self) -> list[str]:
        """The names of the graph's inputs, in order."""
        return [node.name for node in self.gm.graph.nodes if node.op == "placeholder"]

    @property
    def ops(self) -> list[str]:
        """What the graph calls, in order: names of functions, methods and modules."""
        targets = [node.target for node in call_nodes(self.gm)]
        return [
            target if isinstance(target, str) else getattr(target, "__name__", str(target))
            for target in targets
        ]

    @property
    def code(self) -> str:
        """The graph as Python source, in the form ``normalize_gm`` gives it."""
        return normalize_gm(self.gm.print_readable(print_output=False))

    def __str__(self) -> str:
        return self.code


class RecordGraphs:
    """A backend that remembers every graph and its example inputs, and runs the graph through ``backend``.

    ``recorded.only`` is the one record of a function that should have compiled once; ``recorded[i]``,
    ``len(recorded)`` and iteration give them all.

    - ``backend``: what runs the graphs, by name or as a function.

    >>> recorded = bothways.testing.RecordGraphs()
    >>> _ = bothways.compile(lambda x: x.sin() + 1, backend=recorded)(torch.ones(2))
    >>> recorded.only.ops
    ['sin', 'add']
    """

    def __init__(self, backend: str | Backend = "eager") -> None:
        self.backend, self._compile = backend, lookup_backend(backend)  # a wrong name raises here
        self.records: list[Record] = []

    def __call__(self, gm: GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        self.records.append(Record(gm, tuple(example_inputs)))
        return self._compile(gm, example_inputs)

    @property
    def graphs(self) -> list[GraphModule]:
        """The recorded graphs, in the order they were compiled."""
        return [record.gm for record in self.records]

    @property
    def only(self) -> Record:
        """The one record there is; an AssertionError when there are none or several."""
        if len(self.records) != 1:
            raise AssertionError(f"expected one graph, {len(self.records)} were compiled")
        return self.records[0]

    def clear(self) -> None:
        """Forget everything recorded."""
        self.records.clear()

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __bool__(self) -> bool:
        # A backend is a callable; having recorded nothing yet must not make it look absent.
        return True
