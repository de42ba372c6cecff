"""Lowers a graph of ATen operations to kernels and ATen calls, in the order they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways import ops
from bothways.lower.ir.graph import Decomposition
from bothways.lower.ir.prims import Buffer, Extern, Memory
from bothways.lower.ir.sizes import SizeNames
from bothways.lower.schedule.again import compute_again
from bothways.lower.schedule.chosen import keep_chosen
from bothways.lower.schedule.fusion import Call, Fusion, Group, live
from bothways.lower.schedule.in_place import write_in_place
from bothways.lower.schedule.kernels import KernelScheduler
from bothways.lower.schedule.order import in_order
from bothways.lower.schedule.tree import Kernel
from bothways.node_facts import writes_of
from bothways.record.generated import operations_in

Step = Kernel | Extern


@dataclass
class Lowered:
    """What a graph does: its inputs, steps and outputs. Constants are tensors that belong to the graph."""

    inputs: list[Memory]
    held: set[Memory]  # inputs that stay in memory, whoever lets go of them
    constants: dict[Memory, torch.Tensor]
    steps: list[Step]
    outputs: list[Buffer | None]
    device: torch.device  # where its tensors are
    sizes: SizeNames | None = None  # of the symbols that are inputs before the tensors
    symbols: tuple[str, ...] = ()
    operations: int = 0  # of the graph


def lower(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Lowered:
    """Lower a graph for inputs laid out like these."""
    lowering = Decomposition(graph, inputs)
    while lowering.sizes is not None and lowering.sizes.are_outdated:
        lowering = Decomposition(graph, inputs)
    builder = lowering.builder
    outputs = [lowering.output(node) for node in lowering.results]
    needed = [*(buffer for buffer in outputs if buffer is not None), *builder.updates()]
    # Calls whose results nothing reads still run when they do more than compute.
    calls = [call for call in builder.externs if not call.is_pure or ops.of(call.target).checks_indexes]
    keep_chosen(live(needed, calls), builder.stored)
    if not builder.on_gpu:  # there, fusion itself computes what is cheap wherever it is read
        compute_again(live(needed, calls), needed)
    fusion = Fusion(needed, calls, spreads=builder.on_gpu)
    groups = [unit for unit in fusion.units if isinstance(unit, Group)]
    for group in groups:
        for member in group.members:
            for leaf in fusion.leaves(member):
                if fusion.group_of.get(leaf, group) is not group:
                    builder.stored(leaf)
        for member in KernelScheduler(group, fusion, builder.buffers).worth_keeping() if builder.on_gpu else ():
            builder.stored(member)
            group.kept.add(member)
    skipped = len(lowering.symbols)
    writes = {position: index - skipped for position, index in writes_of(graph).items()}
    write_in_place(outputs, writes, lowering.inputs, fusion, builder)
    steps: list[Step] = []
    returned = [buffer.memory for buffer in outputs if buffer is not None]
    for unit in in_order(fusion, builder.buffers, returned):
        if isinstance(unit, Call):
            steps.append(unit.extern)
        elif isinstance(unit, Group):
            steps.append(KernelScheduler(unit, fusion, builder.buffers).kernel())
    return Lowered(
        lowering.inputs, lowering.held, lowering.constants, steps, outputs, builder.device, lowering.sizes,
        tuple(lowering.symbols), operations_in(graph),
    )
