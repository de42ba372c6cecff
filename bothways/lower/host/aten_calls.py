"""Graphs of ATen operations as Python functions: the graph's own code, with each operation called by its fastest entry.

``torch.fx`` writes the code; only the names of operations are replaced, line by line, so what it means stays the same.
A graph of many operations runs below autograd, which would look at each even where there is nothing to do.
"""

from __future__ import annotations

import itertools
import linecache
import operator
import re
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.lower.host.entries import asks_for_grad_mode, entry
from bothways.lower.host.needless_views import drop_needless_views
from bothways.lower.host.watching import WatchedProgram, watch
from bothways.runtime.compiled_graph import described

_FORWARD = re.compile(r"(?:.*\n)??def forward\(self(?:, )?(.*?)\)(?: -> .*?)?:\n(.*)", re.DOTALL)
_CALL = re.compile(r"^    (\w+) = torch\.ops\.\w+\.\w+\.\w+\(", re.MULTILINE)
_numbers = itertools.count(1)

# From so many operations on, leaving autograd out costs less than it saves.
WORTH_A_CONTEXT = 3


def function_of(graph: torch.fx.GraphModule, *, takes_list: bool) -> Callable[..., Any]:
    """The graph as a function of its inputs, or of one list, which it empties, so that each input is freed when it was
    last read: a caller cannot let go of an argument while the function it was passed to runs.

    """
    drop_needless_views(graph.graph)
    code = graph.graph.python_code("self")
    parts = _FORWARD.fullmatch(code.src)
    assert parts is not None
    names, body = parts.groups()
    scope: dict[str, Any] = {**code.globals, "self": graph}
    writer = _Writer(graph.graph, scope, set(re.findall(r"\w+", code.src)))
    body = _CALL.sub(writer.call, body)
    operations = [node.target for node in graph.graph.nodes if node.op.startswith("call")]
    below = len(operations) >= WORTH_A_CONTEXT and all(map(_is_known, operations))
    if takes_list:
        listed = writer.fresh("inputs")
        lines = [f"def run({listed}):", f"    [{names}] = {listed}", f"    {listed}.clear()"]
    else:
        lines = [f"def run({names}):"]
    if below:
        scope[context := writer.fresh("below_autograd")] = torch_compat.below_autograd
        lines.append(f"    with {context}():")
        body = re.sub(r"^(?=.)", "    ", body, flags=re.MULTILINE)
    run = _defined("\n".join([*lines, body]), scope)
    origins = {node.name: node.meta.get("stack_trace") or "" for node in graph.graph.nodes}
    half = "backward" if takes_list else "forward"
    watch(run, WatchedProgram("", half, run.__code__.co_filename, body, (), writer.called, origins=origins))
    looks = any(target is not operator.getitem and asks_for_grad_mode(target) for target in operations)
    return described(run, takes_list=takes_list, looks_at_grad_mode=looks, is_below_autograd=below)


def _is_known(target: Any) -> bool:
    """Whether an operation is PyTorch's own, or takes apart what one has given."""
    return target is operator.getitem or (torch_compat.is_plain_overload(target) and target.namespace == "aten")


class _Writer:
    """Gives names to the entries of a graph's operations."""

    def __init__(self, graph: torch.fx.Graph, scope: dict[str, Any], taken: set[str]) -> None:
        self._nodes = {node.name: node for node in graph.nodes if node.op == "call_function"}
        self._scope, self._taken = scope, taken
        self._names: dict[int, str] = {}

    def fresh(self, name: str) -> str:
        while name in self._taken or name in self._scope:
            name += "_"
        self._taken.add(name)
        return name

    @property
    def called(self) -> tuple[str, ...]:
        """The names that operations are called by."""
        return tuple(self._names.values())

    def call(self, line: re.Match[str]) -> str:
        """The beginning of a line that calls an operation, with the entry's name in the place of the operation's."""
        node = self._nodes.get(line[1])
        if node is None:
            return line[0]
        function = entry(node.target, node.args, node.kwargs, _is_tensor)
        name = self._names.get(id(function))
        if name is None:
            name = self._names[id(function)] = self.fresh(f"at_{str(node.target).split('.')[1]}")
            self._scope[name] = function
        return f"    {node.name} = {name}("


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _defined(source: str, scope: dict[str, Any]) -> Any:
    """The function ``run`` of a text, whose lines tracebacks show for as long as its code lives."""
    label = f"<bothways aten {next(_numbers)}>"
    linecache.cache[label] = (len(source), None, source.splitlines(True), label)
    defined: dict[str, Any] = {}
    exec(compile(source, label, "exec"), scope, defined)
    weakref.finalize(defined["run"].__code__, linecache.cache.pop, label, None).atexit = False
    return defined["run"]
