"""Scripts that show a wrong graph by themselves: the fewest operations that still fail or differ, and their inputs.

``Watcher`` is a backend for whole programs: each graph is compiled, run on copies of its inputs and compared with what
was captured, before the program goes on with it. The first that fails or differs is cut down and written as a script.
"""

from __future__ import annotations

import base64
import functools
import io
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.fx

from bothways.backends import lookup_backend
from bothways.backends.aot import Lowering, differentiated
from bothways.cache.spelling import NotSpelled, function_name
from bothways.config import config
from bothways.errors import KernelWarning
from bothways.runtime.function_spelling import spell
from bothways.source_text import writable
from bothways.testing.checking import compared

NOT_LOWERED = "a graph could not be lowered"  # how a warning begins that says of a graph what this looks for
INSIDE = 1 << 18  # bytes of inputs that are written into the script; more of them lie beside it
WIDTH = 100


def problem_of(graph: torch.fx.GraphModule, inputs: Sequence[Any], backend: str | Callable[..., Any]) -> str | None:
    """What is wrong with what a backend makes of a graph, for inputs like these; None where nothing is."""
    leaves, copies = _copies(inputs)
    named = {"leaves": leaves, "given": copies, "attributes": dict(graph.named_buffers())}
    with config.patch(kernels_for_small_graphs=True), _warnings_as_errors():
        try:
            run = _compiled(graph, copies, backend)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        plain = functools.partial(graph.forward, *copies)
        return compared("graph", plain, functools.partial(run, *copies), named).difference


def _compiled(graph: torch.fx.GraphModule, inputs: list[Any], backend: str | Callable[..., Any]) -> Callable[..., Any]:
    chosen = lookup_backend(backend)
    if isinstance(chosen, Lowering):
        return differentiated(graph, list(inputs), chosen)
    return chosen(graph, list(inputs))


@contextmanager
def _warnings_as_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=NOT_LOWERED, category=KernelWarning)
        yield


def _copies(inputs: Sequence[Any]) -> tuple[list[torch.Tensor], list[Any]]:
    """Inputs of the call's own, and the leaves that lead to them: what is changed in place may be no leaf itself."""
    leaves: list[torch.Tensor] = []
    copies: list[Any] = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            copies.append(value)
            continue
        copy = _like(value)
        if value.requires_grad:
            leaves.append(copy.requires_grad_())
            copy = copy if value.is_leaf else copy.clone()
        copies.append(copy)
    return leaves, copies


def _like(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.detach().clone(memory_format=torch.preserve_format)


class Watcher:
    """A backend that compares each graph it is given before it is used; ``path`` is where the script goes.

    ``problem`` is what was found, if anything.
    """

    __name__ = "watcher"

    def __init__(self, path: Path, backend: str | Callable[..., Any] = "native") -> None:
        self.path, self.backend = path, backend
        self.graphs = 0
        self.problem: str | None = None
        self.unwritten = ""  # why there is no script

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        problem = problem_of(graph, inputs, self.backend) if self.problem is None else None
        if problem is not None:
            self.problem = problem
            smaller, smaller_inputs = smallest(graph, inputs, self.backend)
            try:
                problem = problem_of(smaller, smaller_inputs, self.backend) or problem
                write(self.path, smaller, smaller_inputs, problem, self.backend)
            except NotSpelled as error:
                self.unwritten = f"the graph holds what has no text: {error}"
        plain: Callable[..., Any] = graph.forward
        return plain if problem is not None else _compiled(graph, inputs, self.backend)


# Smaller graphs --------------------------------------------------------------------------------------------


def smallest(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], backend: str | Callable[..., Any]
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The fewest operations found that still fail or differ, from the end and then from the beginning."""

    def fails(candidate: tuple[torch.fx.GraphModule, list[Any]] | None) -> bool:
        return candidate is not None and problem_of(*candidate, backend) is not None

    values = _values(graph, inputs)
    if values is None:
        return graph, list(inputs)
    best = graph, list(inputs)
    calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
    nodes = [node for node in calls if isinstance(values[node], torch.Tensor)]
    order = {node: place for place, node in enumerate(graph.graph.nodes)}

    # The earliest result that differs, by halving: a later one that depends on it differs as well.
    low, high, end = 0, len(nodes) - 1, None
    while low <= high:
        middle = (low + high) // 2
        candidate = _between(graph, values, nodes[middle], 0)
        if fails(candidate):
            best, end, high = candidate or best, nodes[middle], middle - 1
        else:
            low = middle + 1
    if end is None:
        return best
    # As late a beginning as possible: what comes before is an input.
    low, high = 0, order[end]
    while low < high:
        middle = (low + high + 1) // 2
        candidate = _between(graph, values, end, middle)
        if fails(candidate):
            best, low = candidate or best, middle
        else:
            high = middle - 1
    return best


def _values(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> dict[torch.fx.Node, Any] | None:
    """What each node gives; None where the graph itself fails."""
    values: dict[torch.fx.Node, Any] = {}

    class ValuesOfNodes(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            values[n] = result = super().run_node(n)
            # Later operations may change it.
            values[n] = _as_input(result) if isinstance(result, torch.Tensor) else result
            return result

    try:
        ValuesOfNodes(graph).run(*_copies(inputs)[1])
    except Exception:
        return None
    return values


def _as_input(tensor: torch.Tensor) -> torch.Tensor:
    copy = _like(tensor)
    return copy.requires_grad_() if tensor.requires_grad else copy


def _between(
    graph: torch.fx.GraphModule, values: Mapping[torch.fx.Node, Any], end: torch.fx.Node, begin: int
) -> tuple[torch.fx.GraphModule, list[Any]] | None:
    """The graph that computes one node from what there is at a place; None where that is no tensor or number."""
    order = {node: place for place, node in enumerate(graph.graph.nodes)}
    needed, waiting = set[torch.fx.Node](), [end]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes if order[node] >= begin else []
    smaller, copied, new_inputs = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node](), list[Any]()
    for node in (node for node in graph.graph.nodes if node in needed):
        if node.op == "placeholder" or (order[node] < begin and node.op != "get_attr"):
            if not isinstance(values[node], (torch.Tensor, int, float, bool)):
                return None
            copied[node] = smaller.placeholder(node.name)
            copied[node].meta = {"example_value": values[node]}
            new_inputs.append(values[node])
        else:
            copied[node] = smaller.node_copy(node, copied.__getitem__)
    smaller.output((copied[end],))
    return torch.fx.GraphModule(graph, smaller), new_inputs


# Scripts ---------------------------------------------------------------------------------------------------


def write(
    path: Path,
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    problem: str,
    backend: str | Callable[..., Any] = "native",
) -> None:
    """Write a graph and its inputs as a script that shows what is wrong. NotSpelled for what has no text."""
    name = backend if isinstance(backend, str) else "native"
    text = script(graph, inputs, problem, name, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(writable(text), encoding="utf-8")  # the user's names and errors may hold anything


SCRIPT = '''\
"""{operations} operations that bothways compiles to something else than they do as plain Python:

    {problem}

Written by ``python -m bothways repro`` with {versions}. It exits with 1 as long as they do.
"""

import base64
import io
import sys
import zlib

import torch
import bothways
{imports}
torch.manual_seed(0)
bothways.config.kernels_for_small_graphs = True


class Graph(torch.nn.Module):
{body}

{loading}
graph = Graph()
for name, value in attributes.items():
    setattr(graph, name, value)

found = bothways.testing.check(graph, inputs, backend={backend!r})
print(found)
if not found and {backend!r} in bothways.list_backends():
    print(bothways.testing.bisect(graph, inputs, backend={backend!r}))
sys.exit(0 if found else 1)
'''


def script(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], problem: str, backend: str, path: Path | None = None
) -> str:
    """The text of such a script. Inputs lie beside ``path`` where there is one and they are large."""
    spell(graph)
    code = graph.graph.python_code("self")
    body = "".join(f"    {line}\n" if line.strip() else "\n" for line in code.src.strip("\n").splitlines())
    words = set(re.findall(r"\w+", code.src)) - {"torch"}
    imports = "".join(f"\n{_import(name, thing)}" for name, thing in code.globals.items() if name in words)
    return SCRIPT.format(
        operations=sum(node.op.startswith("call") for node in graph.graph.nodes),
        problem="\n    ".join(_folded(problem)),
        versions=f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}",
        imports=f"{imports}\n" if imports else "",
        body=body,
        loading=_loading((list(map(_portable, inputs)), _attributes(graph)), path),
        backend=backend,
    )


def _portable(value: Any) -> Any:
    """An input without what came before it."""
    return _as_input(value) if isinstance(value, torch.Tensor) else value


def _folded(text: str) -> list[str]:
    text = " ".join(writable(text).split()).replace('"', "'").replace("\\", "/")
    return [text[at : at + WIDTH] for at in range(0, min(len(text), 10 * WIDTH), WIDTH)] or [""]


def _import(name: str, thing: Any) -> str:
    """A line that gives a name of the graph's code its meaning."""
    if thing is None or isinstance(thing, (float, int)):
        return f"{name} = float({str(thing)!r})" if isinstance(thing, float) else f"{name} = {thing!r}"
    if isinstance(thing, type(torch)):
        return f"import {thing.__name__} as {name}" if thing.__name__ != name else f"import {name}"
    if isinstance(thing, type):
        return f"from {thing.__module__} import {thing.__qualname__} as {name}"
    return f"import importlib\n{name} = {function_name(thing)}"


def _attributes(graph: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for node in graph.graph.nodes:
        if node.op == "call_module" or "." in (str(node.target) if node.op == "get_attr" else ""):
            raise NotSpelled(f"{node.target} is a module")
        if node.op == "get_attr":
            value = getattr(graph, str(node.target))
            if not isinstance(value, torch.Tensor):
                raise NotSpelled(f"{node.target} is no tensor")
            tensors[str(node.target)] = _like(value)
    return tensors


def _loading(content: Any, path: Path | None) -> str:
    """The lines that give the inputs: from the script itself, or from a file beside it."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    packed = zlib.compress(buffer.getvalue(), 9)
    if len(packed) > INSIDE and path is not None:
        beside = path.with_suffix(".pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(buffer.getvalue())
        return f"inputs, attributes = torch.load(__file__.removesuffix({path.suffix!r}) + '.pt')\n"
    text = base64.b64encode(packed).decode()
    lines = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    packed_lines = "\n".join(f'    "{line}"' for line in lines)
    reading = "inputs, attributes = torch.load(io.BytesIO(zlib.decompress(base64.b64decode(PACKED))))"
    return f"PACKED = (\n{packed_lines}\n)\n{reading}\n"
