"""Lowers a graph of ATen operations to kernels and ATen calls, in the order they run."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways.lower.builder import Builder, NotLowered
from bothways.lower.c_ops import COMPUTED
from bothways.lower.emit import Kernel, KernelWriter
from bothways.lower.fuse import Call, Fusion, Group
from bothways.lower.lowerings import LOWERINGS
from bothways.lower.prims import Buffer, Extern, Map, Memory, Node, is_dense

Step = Kernel | Extern


@dataclass
class Lowered:
    """What a graph does: its inputs, steps and outputs. Constants are tensors that belong to the graph."""

    inputs: list[Memory]
    constants: dict[Memory, torch.Tensor]
    steps: list[Step]
    outputs: list[Buffer | None]


def lower(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Lowered:
    """Lower a graph for inputs laid out like these."""
    lowering = _Lowering(graph, inputs)
    builder = lowering.builder
    outputs = [lowering.output(node) for node in lowering.results]
    fusion = Fusion([buffer for buffer in outputs if buffer is not None], _needed_calls(builder.externs, outputs))
    groups = [unit for unit in fusion.units if isinstance(unit, Group)]
    for group in groups:
        for member in group.members:
            for leaf in fusion.leaves(member):
                if fusion.group_of.get(leaf, group) is not group:
                    builder.stored(leaf)
    steps: list[Step] = []
    for unit in fusion.in_order():
        if isinstance(unit, Call):
            steps.append(unit.extern)
        elif isinstance(unit, Group):
            steps.append(KernelWriter(unit, fusion, builder.buffers).write())
    return Lowered(lowering.inputs, lowering.constants, steps, outputs)


def _needed_calls(externs: list[Extern], outputs: Sequence[Buffer | None]) -> list[Extern]:
    """Calls whose results nobody reads still run when they may do more than compute: draw numbers, check, write."""
    return [call for call in externs if not any(call.results) or not _is_pure(call.target)]


def _is_pure(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and not schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


class _Lowering:
    """Goes through the graph node by node."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> None:
        self.graph = graph
        self.builder = Builder(inputs[0].device if inputs else torch.device("cpu"))
        self.inputs: list[Memory] = []
        self.constants: dict[Memory, torch.Tensor] = {}
        self.results: list[torch.fx.Node | None] = []
        self._values: dict[torch.fx.Node, Any] = {}
        given = iter(inputs)
        for node in graph.graph.nodes:
            match node.op:
                case "placeholder":
                    memory = self._given(node.name, next(given))
                    self.inputs.append(memory)
                    self._values[node] = _whole(memory, node.name)
                case "get_attr":
                    tensor = getattr(graph, str(node.target))
                    memory = self._given(node.name, tensor)
                    self.constants[memory] = tensor
                    self._values[node] = _whole(memory, node.name)
                case "output":
                    self.results = list(node.args[0])
                case _:
                    self._values[node] = self._lower(node)

    def _given(self, name: str, tensor: torch.Tensor) -> Memory:
        return Memory(self.builder.unique(name), tensor.dtype, tuple(tensor.shape), tensor.stride())

    def _lower(self, node: torch.fx.Node) -> Any:
        args: Any
        kwargs: Any
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        if node.target is operator.getitem:
            return args[0][args[1]]
        value = node.meta.get("val")
        self.builder.labels = {"name": node.name, "origin": str(node.target)}
        lowering = LOWERINGS.get(node.target)
        if lowering is not None and _is_computable(args, kwargs, value):
            try:
                return _laid_out(lowering(self.builder, value, *args, **kwargs), value)
            except NotLowered:
                pass
        return self.builder.extern(node.target, args, kwargs, value, node.name)

    def output(self, node: torch.fx.Node | None) -> Buffer | None:
        """A result of the graph in memory, laid out as eager has it."""
        if node is None:
            return None
        value = self._values[node]
        if not isinstance(value, Node):
            return None
        buffer = self.builder.stored(value)
        fake = node.meta["val"]
        if _same_layout(buffer, fake.stride()):
            return buffer
        copied = Map(buffer.shape, buffer.dtype, "copy", (buffer,), name=node.name, strides=fake.stride())
        return self.builder.stored(copied)


def _whole(memory: Memory, name: str) -> Buffer:
    return Buffer(memory.shape, memory.dtype, memory, memory.strides, name=name)


def _is_computable(args: Any, kwargs: Any, value: Any) -> bool:
    """Whether all tensors have elements, of dtypes that kernels compute in."""
    fakes = value if isinstance(value, (tuple, list)) else [value]
    if not all(isinstance(fake, torch.Tensor) and fake.dtype in COMPUTED and fake.numel() for fake in fakes):
        return False
    pending = [args, kwargs]
    while pending:
        item = pending.pop()
        if isinstance(item, Node):
            if item.dtype not in COMPUTED or not item.numel:
                return False
        elif isinstance(item, (tuple, list)):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
    return True


def _laid_out(result: Any, value: Any) -> Any:
    """Remember how eager lays out a computed result."""
    fits = isinstance(result, Map) and result.strides is None and result.shape == tuple(value.shape)
    if fits and is_dense(result.shape, value.stride()):
        result.strides = value.stride()
    return result


def _same_layout(buffer: Buffer, strides: tuple[int, ...]) -> bool:
    return all(
        size == 1 or one == other for size, one, other in zip(buffer.shape, buffer.strides, strides, strict=True)
    )
