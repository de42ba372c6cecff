"""Graphs with tensors on a GPU and on the CPU, as a half for each: kernels are for one device.

What the GPU reads of the CPU's half are numbers, such as those that an optimizer makes of its counters: they are
computed first, go up together as one tensor, and the GPU's half takes them from there. Results of the CPU's half, which
may be written to its inputs, are computed when all else is done. Inputs that the graph itself moves to the GPU are
moved in between. Whatever else the halves have to do with each other is not for kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways import ops
from bothways.fake import thin_outline
from bothways.lower.ir.graph import NUMBERS
from bothways.node_facts import note_writes, writes_of
from bothways.runtime.compiled_graph import described, known_of
from bothways.runtime.graph_module import graph_module
from bothways.runtime.picking import picker
from bothways.symbols import SYMBOLIC

Node = torch.fx.Node
aten = torch.ops.aten
CPU = torch.device("cpu")
COPIES = (aten._to_copy.default,)
# What a double holds.
IN_DOUBLES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int32)


@dataclass(frozen=True)
class Half:
    """A graph of one device: its inputs by their places among those of the whole, and where its results go."""

    graph: torch.fx.GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Halves:
    """``numbers`` gives one tensor, ``moved`` are inputs with the operation that moves them: both are inputs of the
    GPU's half behind its own. A half that has nothing to do is None."""

    numbers: Half | None
    moved: tuple[tuple[int, Node], ...]
    on_gpu: Half
    on_cpu: Half | None
    device: torch.device
    count: int  # of results


def place_numbers(graph: torch.fx.GraphModule) -> None:
    """Say of numbers that became tensors, as those in a ``vmap`` do, that they are on the GPU where only it reads them:
    they are part of its kernels."""
    device = _gpu_of(graph)
    for node in graph.graph.nodes:
        if device is not None and _is_plain_number(node) and all(map(_is_on_gpu, node.users)):
            node.meta["val"] = thin_outline((), (), node.meta["val"].dtype, device)


def halves_of(graph: torch.fx.GraphModule) -> Halves | None:
    """The graph by devices; None where it is not of that kind."""
    device = _gpu_of(graph)
    return None if device is None else _Splitting(graph, device).halves()


class _NotSplit(Exception):
    pass


class _Splitting:
    def __init__(self, graph: torch.fx.GraphModule, device: torch.device) -> None:
        self.graph, self.device = graph, device
        self.inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        [output] = graph.graph.find_nodes(op="output")
        self.outputs: list[Node | None] = list(output.args[0])

    def halves(self) -> Halves | None:
        calls = [node for node in self.graph.graph.nodes if node.op == "call_function"]
        try:
            for node in calls:
                self._check(node)
        except _NotSplit:
            return None
        own = [node for node in self.graph.graph.nodes if node.op != "output" and _is_on_gpu(node)]
        read = list(dict.fromkeys(source for node in own for source in node.all_input_nodes if _is_on_cpu(source)))
        moved = [node for node in own if self._is_moved(node)]
        crossing = [node for node in read if any(user in own and user not in moved for user in node.users)]
        numbers = self._numbers(crossing) if crossing else None
        on_gpu = self._half_of_gpu(crossing, moved)
        of_cpu = [place for place, node in enumerate(self.outputs) if node is not None and _is_on_cpu(node)]
        on_cpu = self._half([node for node in map(self.outputs.__getitem__, of_cpu) if node is not None], of_cpu)
        places = tuple((self.inputs.index(node.all_input_nodes[0]), node) for node in moved)
        return Halves(numbers, places, on_gpu, on_cpu if of_cpu else None, self.device, len(self.outputs))

    def _is_moved(self, node: Node) -> bool:
        """Whether a node brings an input to the GPU."""
        sources = node.all_input_nodes
        return node.target in COPIES and _is_on_gpu(node) and len(sources) == 1 and _is_on_cpu(sources[0])

    def _check(self, node: Node) -> None:
        """Raise for what cannot be in either half, or has to be done in the order of the program."""
        devices = {value.device.type == "cpu" for value in _values(node)}
        if len(devices) > 1:
            raise _NotSplit
        sources = node.all_input_nodes
        if self._is_moved(node):
            if sources[0].op != "placeholder":
                raise _NotSplit
        elif _is_on_gpu(node):
            if any(_is_on_cpu(source) and not _is_number(source) for source in sources):
                raise _NotSplit
        elif True in devices:
            operation = ops.of(node.target)
            if any(map(_is_on_gpu, sources)) or operation.draws or operation.writes:
                raise _NotSplit
        elif any(map(_values, sources)) and any(map(_is_on_cpu, sources)):
            raise _NotSplit  # a check, say, or a number that is read

    def _is_kept(self, node: Node) -> bool:
        """Whether the GPU does something here besides computing what others read."""
        operation = ops.of(node.target)
        on_gpu = _is_on_gpu(node) or any(map(_is_on_gpu, node.all_input_nodes))
        return on_gpu and not self._is_moved(node) and (operation.draws or operation.writes or not _values(node))

    # The halves.

    def _half(self, results: Sequence[Node], places: Sequence[int]) -> Half:
        """What computes these results, with nothing else."""
        copies: dict[Node, Node] = {}
        graph = torch.fx.Graph()
        needed = self._behind(results, ())
        inputs = self._take_inputs(graph, needed, copies)
        self._copy(graph, needed, copies)
        graph.output(tuple(copies[node] for node in results))
        return self._noted(self._module(graph), inputs, places)

    def _numbers(self, crossing: Sequence[Node]) -> Half:
        """What computes the numbers, as one tensor of doubles."""
        half = self._half(crossing, ())
        graph = half.graph.graph
        [output] = graph.find_nodes(op="output")
        with graph.inserting_before(output):
            doubles = []
            for number in output.args[0]:
                if number.meta["val"].dtype is not torch.float64:
                    number = graph.call_function(aten._to_copy.default, (number,), {"dtype": torch.float64})
                    number.meta["val"] = _doubles(None, CPU)
                doubles.append(number)
            together = graph.call_function(aten.stack.default, (doubles,))
            together.meta["val"] = _doubles(len(doubles), CPU)
        output.args = ((together,),)
        half.graph.recompile()
        return half

    def _half_of_gpu(self, crossing: Sequence[Node], moved: Sequence[Node]) -> Half:
        places = [place for place, node in enumerate(self.outputs) if node is not None and _is_on_gpu(node)]
        results = [node for node in map(self.outputs.__getitem__, places) if node is not None]
        kept = [node for node in self.graph.graph.nodes if node.op == "call_function" and self._is_kept(node)]
        copies: dict[Node, Node] = {}
        graph = torch.fx.Graph()
        needed = self._behind([*results, *kept], {*crossing, *moved})
        inputs = self._take_inputs(graph, needed, copies)
        for node in moved:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        if crossing:
            numbers = graph.placeholder(NUMBERS)
            numbers.meta["val"] = _doubles(len(crossing), self.device)
            for place, node in enumerate(crossing):
                copies[node] = graph.call_function(aten.select.int, (numbers, 0, place))
                copies[node].meta["val"] = _doubles(None, self.device)
                dtype = node.meta["val"].dtype
                if dtype is not torch.float64:  # what is written to places has to be of the dtype it is written to
                    copies[node] = graph.call_function(aten._to_copy.default, (copies[node],), {"dtype": dtype})
                    copies[node].meta["val"] = thin_outline((), (), dtype, self.device)
        self._copy(graph, needed, copies)
        graph.output(tuple(copies[node] for node in results))
        return self._noted(self._module(graph), inputs, places)

    def _behind(self, results: Iterable[Node], inputs: Iterable[Node]) -> set[Node]:
        """The nodes that results are computed from, up to those that are given."""
        needed: set[Node] = set()
        known, pending = set(inputs), list(results)
        while pending:
            node = pending.pop()
            if node not in needed and node not in known:
                needed.add(node)
                pending.extend(node.all_input_nodes)
        return needed

    def _take_inputs(self, graph: torch.fx.Graph, needed: set[Node], copies: dict[Node, Node]) -> list[int]:
        # Sizes are read where no node says so.
        places = [place for place, node in enumerate(self.inputs) if node in needed or _is_size(node)]
        for place in places:
            copies[self.inputs[place]] = graph.node_copy(self.inputs[place])
        return places

    def _copy(self, graph: torch.fx.Graph, needed: set[Node], copies: dict[Node, Node]) -> None:
        for node in self.graph.graph.nodes:
            if node in needed and node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)

    def _module(self, graph: torch.fx.Graph) -> torch.fx.GraphModule:
        return graph_module(graph, self.graph)

    def _noted(self, module: torch.fx.GraphModule, inputs: Sequence[int], places: Sequence[int]) -> Half:
        writes = {
            places.index(result): inputs.index(target)
            for result, target in writes_of(self.graph).items()
            if result in places and target in inputs
        }
        note_writes(module, writes)
        return Half(module, tuple(inputs), tuple(places))


def _doubles(count: int | None, device: torch.device) -> torch.Tensor:
    """What stands for so many doubles, or for one number."""
    return thin_outline(() if count is None else (count,), () if count is None else (1,), torch.float64, device)


def _gpu_of(graph: torch.fx.GraphModule) -> torch.device | None:
    """The one GPU that some tensors are on, while others are on the CPU."""
    devices = {value.device for node in graph.graph.nodes for value in _values(node)}
    gpus = {device for device in devices if device.type == "cuda"}
    if len(gpus) > 1:  # one of them may be that which is current
        gpus.discard(torch.device("cuda"))
    return next(iter(gpus)) if len(gpus) == 1 and CPU in devices and len({d.type for d in devices}) == 2 else None


def _values(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def _is_on_gpu(node: Node) -> bool:
    return any(value.device.type != "cpu" for value in _values(node))


def _is_on_cpu(node: Node) -> bool:
    return any(value.device.type == "cpu" for value in _values(node))


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in IN_DOUBLES


def _is_plain_number(node: Node) -> bool:
    return node.target in COPIES and bool(node.users) and _is_on_cpu(node) and isinstance(node.args[0], (int, float))


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), SYMBOLIC)


# What runs them.

Compile = Callable[[torch.fx.GraphModule, list[Any], str], Callable[..., Any]]


def run_halves(halves: Halves, inputs: Sequence[Any], compile: Compile, takes_list: bool) -> Callable[..., Any]:
    """A function that does what both do. ``compile`` makes one of a graph, of inputs like these and a name."""
    fakes = [node.meta["val"] for node in halves.on_gpu.graph.graph.nodes if node.op == "placeholder"]
    captured = [inputs[place] for place in halves.on_gpu.inputs]
    device = halves.device
    moved: list[tuple[int, Any, dict[str, Any]]] = [(at, node.target, dict(node.kwargs)) for at, node in halves.moved]
    on_gpu = compile(halves.on_gpu.graph, [*captured, *fakes[len(captured) :]], "on the GPU")
    numbers, on_cpu = (_compiled(half, inputs, compile) for half in (halves.numbers, halves.on_cpu))
    pick = picker(halves.on_gpu.inputs)
    places = [*halves.on_gpu.outputs, *(halves.on_cpu.outputs if halves.on_cpu is not None else ())]
    order = [places.index(place) if place in places else -1 for place in range(halves.count)]
    in_order = order == list(range(len(places)))

    def run(*values: Any) -> tuple[Any, ...]:
        more = [move(values[place], **options) for place, move, options in moved]
        if numbers is not None:
            more.append(numbers(values)[0].to(device, non_blocking=True))
        results = on_gpu(*pick(values), *more)
        if on_cpu is not None:
            results = (*results, *on_cpu(values))
        return results if in_order else tuple(results[at] if at >= 0 else None for at in order)

    def run_list(values: list[Any]) -> tuple[Any, ...]:
        kept = tuple(values)
        values.clear()
        return run(*kept)

    looks = known_of(on_gpu).looks_at_grad_mode
    return described(run_list if takes_list else run, takes_list=takes_list, looks_at_grad_mode=looks)


def _compiled(half: Half | None, inputs: Sequence[Any], compile: Compile) -> Callable[[Sequence[Any]], Any] | None:
    if half is None:
        return None
    run, pick = compile(half.graph, [inputs[place] for place in half.inputs], "on the CPU"), picker(half.inputs)
    return lambda values: run(*pick(values))
