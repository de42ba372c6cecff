"""``bothways.testing.bisect(f, args)``: which part of the compiler makes a function differ from plain Python.

Stages first: the capture alone, then with our gradients, then with kernels. Then graphs, smaller ones before larger
ones, run as captured one after another until nothing differs any more; the last one is at fault. In that graph the
forward, then the backward is left to ATen, each kernel is compared with plain loops, and where kernels do what their
loops say, operations are left to ATen one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx

from bothways.backends import lookup_backend
from bothways.backends.aot import GraphCompiler, Lowering, aot_eager, run_and_forget, run_as_is
from bothways.backends.native import compile_kernels, native
from bothways.ops import LOWERINGS
from bothways.record import generated
from bothways.testing.checking import EXACT, TOLERANCES, Agreement, check
from bothways.testing.witness import Testimony, Uncached, Witness


@dataclass(frozen=True)
class Culprit:
    """What makes a function differ. Print it to read it.

    ``stage`` is the part of the compiler at fault: nothing, capture, gradients, kernels or backend. ``graph`` is the
    text of the captured graph and ``function`` the function it belongs to, ``half`` is forward or backward, ``kernel``
    the text of the kernel, ``operation`` the ATen operation whose lowering is wrong, ``lines`` are lines of your
    source.
    """

    stage: str
    agreement: Agreement
    function: str = ""
    graph: str = ""
    half: str = ""
    kernel: str = ""
    operation: str = ""
    difference: str = ""
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.stage == "nothing":
            return f"nothing differs: {self.agreement}"
        facts = {"graph of": self.function, "half": self.half, "operation": self.operation, "differs": self.difference}
        texts = {"the kernel": self.kernel, "the graph": "" if self.kernel else self.graph}
        lines = [f"at fault: {self.stage}"]
        lines += [f"  {name}: {value}" for name, value in facts.items() if value]
        lines += [f"  line: {line}" for line in self.lines]
        lines += [f"  {name}:\n{_indented(text)}" for name, text in texts.items() if text]
        return "\n".join([*lines, str(self.agreement)])


@dataclass
class _Graphs:
    """The graphs that a call compiles, those that are left as captured, and who compiles the halves of the others."""

    alone: set[str] = field(default_factory=set)
    met: dict[str, tuple[str, int]] = field(default_factory=dict)  # text -> function, operations

    def leaves_alone(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> bool:
        text, record = str(graph.graph), generated.current()
        size = sum(node.op.startswith("call") for node in graph.graph.nodes)
        self.met.setdefault(text, ("" if record is None else record.function, size))
        return text in self.alone

    def lowering(self, forward: GraphCompiler, backward: GraphCompiler) -> Lowering:
        return Lowering("bisecting", forward, backward, is_small=self.leaves_alone, has_kernels=native.has_kernels)


# Programs are compiled each time: what is kept on disk does not know that an operation is left to ATen.
UNCACHED = (
    partial(compile_kernels, name="forward", takes_list=False, spelled_by=Uncached),
    partial(compile_kernels, name="backward", takes_list=True, spelled_by=Uncached),
)


def bisect(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "native",
    tol: float | None = None,
    **options: Any,
) -> Culprit:
    """Find what makes a compiled function differ from the plain one: the stage, the graph, the kernel.

    The function is called many times, each time from the same start; afterwards everything is as it was. It has to be
    the plain one: it is compiled in many ways here.

    - ``fn``, ``args``, ``kwargs``, ``tol``, ``options``: as for ``check``.
    - ``backend``: the backend that makes it differ; one of the user's is at fault as a whole, for one of the graphs.

    >>> print(bothways.testing.bisect(lambda x: x.sin() * 2, [torch.ones(3)]))
    nothing differs: <lambda>: 2 compiled calls agree with plain Python, which returned 1 tensor
    """
    agrees = partial(check, fn, args, kwargs, tol=tol, **options)
    first = agrees(backend=backend)
    if first:
        return Culprit("nothing", first)
    captured = agrees(backend="eager")
    if not captured:
        return Culprit("capture", captured)
    if backend not in ("native", "aot_eager"):
        return _graph_at_fault(agrees, first, "backend", _foreign(backend))
    differentiated = agrees(backend="aot_eager")
    if not differentiated:
        return _graph_at_fault(agrees, differentiated, "gradients", _ours(aot_eager.forward, aot_eager.backward))
    return _kernel_at_fault(agrees, _graph_at_fault(agrees, first, "kernels", _ours(*UNCACHED)))


Agrees = Callable[..., Agreement]
Make = Callable[[_Graphs], Any]  # the backend that compiles graphs, save those that are left alone


def _ours(forward: GraphCompiler, backward: GraphCompiler) -> Make:
    return lambda graphs: graphs.lowering(forward, backward)


def _foreign(backend: Any) -> Make:
    chosen = lookup_backend(backend)

    def make(graphs: _Graphs) -> Any:
        def compile(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            if graphs.leaves_alone(graph, inputs):
                plain: Callable[..., Any] = graph.forward
                return plain
            return chosen(graph, inputs)

        return compile

    return make


def _graph_at_fault(agrees: Agrees, agreement: Agreement, stage: str, make: Make) -> Culprit:
    """Leave graphs as captured, the smallest first, until nothing differs."""
    graphs = _Graphs()
    seen = agrees(backend=make(graphs))
    if seen:
        return Culprit(stage, agreement)  # as a whole, and not graph by graph
    while True:
        rest = {text: known for text, known in graphs.met.items() if text not in graphs.alone}
        if not rest:
            return Culprit(stage, agreement)
        text = min(rest, key=lambda text: rest[text][1])
        graphs.alone.add(text)
        now = agrees(backend=make(graphs))
        if now:
            return Culprit(stage, seen, graphs.met[text][0], text)
        seen = now


def _kernel_at_fault(agrees: Agrees, culprit: Culprit) -> Culprit:
    """Which kernel of which half of a graph; which operation, where the kernels do what their loops say."""
    graphs = _Graphs()
    agrees(backend=graphs.lowering(*UNCACHED))
    others = {text for text in graphs.met if text != culprit.graph} if culprit.graph else set()
    if agrees(backend=_Graphs(others).lowering(*UNCACHED)):
        others = set()  # it takes others to show
    half = ""
    if agrees(backend=_Graphs(others).lowering(run_as_is, UNCACHED[1])):
        half = "forward"
    elif agrees(backend=_Graphs(others).lowering(UNCACHED[0], run_and_forget)):
        half = "backward"
    testimony = Testimony()
    looking_on = [partial(part, spelled_by=partial(_witness, testimony)) for part in UNCACHED]
    agrees(backend=_Graphs(others).lowering(looking_on[0], looking_on[1]), calls=1)
    for kernel, text, differs in testimony.wrong:
        return _with(culprit, half=half, kernel=text, difference=differs, lines=tuple(kernel.origins))
    for target in _operations(agrees, others):
        with _left_to_aten(target):
            if agrees(backend=_Graphs(others).lowering(*UNCACHED)):
                return _with(culprit, half=half, operation=str(target))
    return _with(culprit, half=half)


def _witness(testimony: Testimony, dialect: Any) -> Any:
    return Witness(dialect, testimony, lambda dtype: TOLERANCES.get(dtype, EXACT))


def _operations(agrees: Agrees, others: set[str]) -> list[Any]:
    """The operations of the graphs that become kernels and have a lowering, in order."""
    targets: dict[Any, None] = {}

    def noting(compiler: GraphCompiler, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        targets.update(dict.fromkeys(node.target for node in graph.graph.nodes if node.target in LOWERINGS))
        return compiler(graph, inputs)

    forward, backward = (partial(noting, part) for part in UNCACHED)
    agrees(backend=_Graphs(others).lowering(forward, backward), calls=1)
    return list(targets)


@contextmanager
def _left_to_aten(target: Any) -> Iterator[None]:
    """Without the lowering of one operation."""
    lowering = LOWERINGS.pop(target)
    try:
        yield
    finally:
        LOWERINGS[target] = lowering


def _with(culprit: Culprit, **facts: Any) -> Culprit:
    return Culprit(**{**vars(culprit), **facts})


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())
