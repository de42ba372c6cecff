"""The ``native`` backend: forward and backward graphs become fused kernels, built by the system's C compiler, or by
NVIDIA's where tensors are on its GPUs."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.backends.aot import Lowering, run_and_forget, run_as_is, small_within
from bothways.backends.for_kernels import FOR_KERNELS
from bothways.backends.mixed import halves_of, place_numbers, run_halves
from bothways.backends.packed import INSTEAD
from bothways.errors import KernelWarning, NoCompiler, warn_once
from bothways.lower import NotLowered, compile_graph
from bothways.lower.dialects.c.dialect import C
from bothways.lower.host.dialect import Dialect
from bothways.lower.host.memo import Memo, memo_of
from bothways.node_facts import writes_of
from bothways.record import generated
from bothways.replay.replayed import one_device, replayed
from bothways.runtime.compiled_graph import known_of

DIALECT = C()
NEGATES = "a view negates what it shows"
# (elements of the largest input, operations): what runs faster as captured, on two x86 cores. A kernel has to be
# called, too, and where gradients are wanted, our autograd node is Python and takes as long as three of PyTorch's own.
SMALL = ((1 << 16, 1),)
SMALL_WITH_GRADIENTS = ((1 << 13, 3), (1 << 15, 2), (1 << 20, 1))


def compile_kernels(
    graph: torch.fx.GraphModule,
    inputs: list[torch.Tensor],
    *,
    name: str,
    takes_list: bool,
    spelled_by: Callable[[Dialect], Dialect] = lambda dialect: dialect,
) -> Callable[..., Any]:
    """The graph as kernels where all its tensors are on one device that there are kernels for, or on the CPU and one
    GPU that have little to do with each other; as ATen calls elsewhere. On a GPU these are replayed where that can be.

    ``spelled_by`` may put another dialect in the place of the one that is chosen.
    """
    place_numbers(graph)
    halves = halves_of(graph)
    if halves is not None:
        def part(half: torch.fx.GraphModule, inputs: list[Any], where: str) -> Callable[..., Any]:
            return compile_kernels(half, inputs, name=f"{name} {where}", takes_list=False, spelled_by=spelled_by)

        return run_halves(halves, inputs, part, takes_list)
    tensors = list(_tensors_of(graph, inputs))
    run = _compiled(graph, inputs, tensors, name, takes_list, spelled_by)
    return replayed(run, name, one_device(tensors), graph)


def _compiled(
    graph: torch.fx.GraphModule,
    inputs: list[torch.Tensor],
    tensors: list[torch.Tensor],
    name: str,
    takes_list: bool,
    spelled_by: Callable[[Dialect], Dialect],
) -> Callable[..., Any]:
    dialect, reason = _dialect_of(tensors)
    reason = reason or next(filter(None, (*map(_why_not, tensors), _why_not_complex(graph, inputs))), "")
    if not reason:
        try:
            return compile_graph(graph, inputs, name, dialect=spelled_by(dialect), takes_list=takes_list)
        except NotLowered as error:  # what the graph does to its inputs is for ATen to do
            reason = str(error)
        except KernelWarning:  # the user wants warnings to be errors
            raise
        except NoCompiler as error:
            warn_once(f"graphs run as ATen operations: {error}")
            reason = f"there is no C compiler that works: {error.problem}"
        except Exception as error:
            # Whatever is wrong with our kernels, the graph itself is right and people's work goes on.
            at = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({os.path.basename(at.filename)}:{at.lineno})"
            warn_once(f"a graph could not be lowered and runs as ATen operations, please report it: {reason}")
            reason = f"it could not be lowered: {reason}"
    generated.as_aten(graph, reason, name)
    return run_and_forget(graph, inputs) if takes_list else run_as_is(graph, inputs)


def _tensors_of(graph: torch.fx.GraphModule, inputs: list[Any]) -> Iterator[torch.Tensor]:
    """Whatever the graph is given, holds and computes: it may make tensors where none of its inputs are."""
    held = (getattr(graph, str(node.target), None) for node in graph.graph.nodes if node.op == "get_attr")
    results = (node.meta.get("val") for node in graph.graph.nodes)
    for value in (*inputs, *held, *results):
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def _dialect_of(tensors: Sequence[torch.Tensor]) -> tuple[Dialect, str]:
    """The language of kernels for the device that all tensors are on; why there is none otherwise."""
    devices = {tensor.device for tensor in tensors}
    if torch.device("cuda") in devices and len(devices) > 1 and torch.cuda.device_count() == 1:
        devices.discard(torch.device("cuda"))
    if any(device.type not in ("cpu", "cuda") for device in devices):
        other = next(device.type for device in devices if device.type not in ("cpu", "cuda"))
        return DIALECT, f"kernels are for the CPU and for NVIDIA's GPUs, and a tensor is on {other}"
    if len(devices) > 1:
        return DIALECT, f"kernels are for one device, and tensors are on {' and '.join(sorted(map(str, devices)))}"
    if not devices or next(iter(devices)).type == "cpu":
        return DIALECT, ""
    [device] = devices
    if device.index is None and torch.cuda.device_count() > 1:
        return DIALECT, "which GPU a tensor is on is known only when it is made"
    from bothways.lower.dialects.cuda.dialect import Cuda

    dialect = Cuda(device.index or 0)
    problem = dialect.why_not()
    if problem:
        warn_once(f"graphs on GPUs run as ATen operations: {problem}")
        return DIALECT, f"there is no compiler for GPUs that works: {problem}"
    return dialect, ""


@dataclass(frozen=True)
class _MemoOfReplayed(Memo):
    """A memo whose programs are replayed, as those are that are compiled now."""

    device: torch.device | None = None

    def part(self, *names: str) -> Memo:
        return replace(self, key=super().part(*names).key)

    def program(self, key: str, takes: int, gives: int) -> Callable[..., Any] | None:
        run = super().program(key, takes, gives)
        if run is None:
            return None
        return replayed(run, "backward" if known_of(run).takes_list else "forward", self.device)


def _memo_of(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], expected: Sequence[Any]) -> Memo | None:
    """The memo of a captured graph, by the language that its kernels have."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    dialect, reason = _dialect_of(tensors)
    memo = memo_of(graph, inputs, expected, dialect=DIALECT if reason else dialect)
    device = None if reason else one_device(tensors)
    return memo if memo is None or device is None else _MemoOfReplayed(memo.cache, memo.key, memo.dialect, device)


def _why_not(tensor: torch.Tensor) -> str:
    """Why kernels could not read its memory; nothing if they could."""
    if tensor.is_neg():  # what an operation that ran as captured has given
        return NEGATES
    return "" if torch_compat.is_strided(tensor) else "a tensor is of a special layout"


def _why_not_complex(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Why ATen computes all of a graph with complex numbers; nothing where it computes these, and kernels the rest.

    A view may negate what it shows, which strides do not tell; and kernels do not write to complex inputs.
    """
    if any(node.target is torch_compat.aten("_neg_view") for node in graph.graph.nodes):
        return NEGATES
    written = (inputs[index] for index in writes_of(graph).values())
    return "kernels do not compute with complex numbers" if any(map(torch.is_complex, written)) else ""


def _has_kernels(inputs: list[Any]) -> bool:
    """Whether kernels can read all that a graph is given, and there are some for the GPU that tensors are on."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    on_gpu = [tensor for tensor in tensors if tensor.device.type == "cuda"]
    return not any(map(_why_not, tensors)) and not (on_gpu and _dialect_of(on_gpu)[1])


# Captured graphs become kernels; what these cannot make faster stays as it is.
native = Lowering(
    "native",
    forward=partial(compile_kernels, name="forward", takes_list=False),
    backward=partial(compile_kernels, name="backward", takes_list=True),
    is_small=small_within(SMALL, SMALL_WITH_GRADIENTS),
    remember=_memo_of,
    turns_images=True,
    decompositions=FOR_KERNELS,
    has_kernels=_has_kernels,
    instead=INSTEAD,
)
