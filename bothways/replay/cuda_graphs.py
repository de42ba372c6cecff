"""CUDA graphs: what a function launches, ATen's kernels and ours, recorded on a stream aside and launched as one.

Recording runs nothing. What is allocated in it stays in a pool of PyTorch's allocator: one that the recordings of a
stream share, where they give nothing away, or one of its own for a recording that lends its results.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.building.cuda_driver import driver
from bothways.locks import Lock
from bothways.replay.kernel_nodes import KernelNode, NotRead, Slot, kernel_nodes, slots_of
from bothways.replay.numbers import Expressions
from bothways.replay.recorders import Lane
from bothways.replay.workspaces import let_go, makes_products, multiply, stream_aside, wake_up

# Numbers to find out where numbers are: of the order of one, so that sums with them show it.
OTHER, STEP = 1.3720703125, 0.3115234375
ROOM = 2.5  # times what a recording takes: two more of it are made, in memory of their own


_left: list[Any] = []  # graphs whose recording failed


class Stream(Lane):
    """A stream of the caller's, and the one aside that recordings for it are made on: what libraries allocate for a
    stream is not shared by graphs that may run at the same time."""

    def __init__(self, key: tuple[int, int]) -> None:
        super().__init__(key)
        self.device = torch.device("cuda", key[0])
        self.aside, self._is_own = stream_aside(self.device)
        self._pool: Any = None
        self._anchor: Any = None
        self.shared = 0  # bytes of the pool that recordings share

    def leave_pool(self, graph: torch.cuda.CUDAGraph) -> None:
        """Begin another pool, after a recording failed: PyTorch takes the old one for one that is still recorded to,
        and asks the graph whether an allocation belongs to it, so that both have to stay."""
        _left.append((graph, self._anchor))
        self._anchor, self.shared = None, 0

    def pool(self) -> Any:
        """The pool that recordings share which lend nothing. A graph of one launch keeps it when they are gone."""
        if self._anchor is None:
            self._pool = torch.cuda.graph_pool_handle()
            anchor = torch.cuda.CUDAGraph()
            with aside(self), _capture(anchor, self._pool):
                torch.zeros(1, device=self.device)
            self._anchor = anchor
        return self._pool

    @contextlib.contextmanager
    def working_in_pool(self, run: Callable[..., Any]) -> Iterator[Any]:
        """Have what a graph of products works in lie in the pool that recordings share. Gives who keeps that pool."""
        pool = self.pool()
        first = torch.cuda.CUDAGraph()
        try:
            if makes_products(run):
                wake_up(self.device)
                _left.append(first)
                with aside(self), _capture(first, pool):
                    multiply(self.device)
                _left.remove(first)
            yield self._anchor
        finally:
            if self._is_own:
                let_go(self.aside)


class CudaGraphs:
    """The recorder for NVIDIA's GPUs."""

    runs_python = False

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], Stream] = {}
        self._lock = Lock()

    def why_not_now(self) -> str:
        if torch_compat.stream_is_capturing():
            return "the call is part of another CUDA graph"
        return "a dispatch mode looks at each operation" if torch_compat.dispatch_mode_depth() else ""

    def lane(self, device: torch.device) -> Stream:
        key = device.index, torch_compat.current_raw_stream(device.index)
        stream = self._lanes.get(key)
        if stream is None:
            with self._lock:
                stream = self._lanes.setdefault(key, Stream(key))
        return stream

    def record(
        self, run: Callable[..., Any], values: list[Any], takes_list: bool, lane: Lane, lends: bool
    ) -> RecordedGraph:
        assert isinstance(lane, Stream)
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        try:
            with lane.working_in_pool(run) as anchor:
                before = torch.cuda.memory_reserved(lane.device)
                with aside(lane), _capture(graph, torch.cuda.graph_pool_handle() if lends else lane.pool()):
                    outputs = run(list(values)) if takes_list else run(*values)
        except BaseException:
            lane.leave_pool(graph)
            raise
        graph.instantiate()
        own = sum(output.nbytes for output in outputs if isinstance(output, torch.Tensor))
        grown = max(torch.cuda.memory_reserved(lane.device) - before, own)
        if not lends:
            lane.shared += grown
        taken = grown if lends else lane.shared
        return RecordedGraph(graph, outputs, _count_of_nodes(graph), grown, taken, lane.device, anchor)


class RecordedGraph:
    """A CUDA graph, with what it writes to. It has made its device's memory grow by ``grown`` bytes, and would take at
    most ``taken`` in memory of its own."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        outputs: Sequence[Any],
        nodes: int,
        grown: int,
        taken: int,
        device: torch.device,
        anchor: Any,
    ) -> None:
        self._anchor = anchor  # of the pool that products work in
        self.graph, self.outputs, self.nodes, self.bytes = graph, outputs, nodes, grown
        self._taken, self._device = taken, device
        self.replay = torch_compat.replay_of(graph)
        self._slots: list[Slot] = []
        self._nodes: dict[int, KernelNode] = {}
        self._expressions: Any = None

    def learn(
        self, expressions: Expressions, numbers: Sequence[float], again: Callable[[Sequence[float]], RecordedGraph]
    ) -> str:
        others = [OTHER + place * STEP for place in range(len(numbers))]
        if torch.cuda.mem_get_info(self._device)[0] < ROOM * self._taken:
            return "there is no memory for finding out where a number is in it"
        try:
            nodes = kernel_nodes(self.graph.raw_cuda_graph())
            same, other = again(numbers), again(others)  # which have to live while they are read
            alike = kernel_nodes(same.graph.raw_cuda_graph()), kernel_nodes(other.graph.raw_cuda_graph())
            slots = slots_of(nodes, alike[0], alike[1], expressions(numbers), expressions(others), expressions.are_ours)
        except NotRead as error:
            return f"where a number is in it is not known: {error}"
        except Exception as error:  # an operation that takes no such number
            return f"with another number it raised {type(error).__name__}: {error}"
        if isinstance(slots, str):
            return slots
        self._slots, self._expressions = slots, expressions
        self._nodes = {slot.node: nodes[slot.node] for slot in slots}
        return ""

    def set_numbers(self, numbers: Sequence[float]) -> None:
        values = self._expressions(numbers)
        for slot in self._slots:
            argument = self._nodes[slot.node].arguments[slot.argument]
            struct.pack_into(slot.spelling, argument, slot.offset, values[slot.number])
        for node in self._nodes.values():
            node.set(self.graph.raw_cuda_graph_exec())

    def done(self, lent: Sequence[torch.Tensor]) -> None:
        """Results are ordered behind the replay by their stream."""


@contextlib.contextmanager
def aside(stream: Stream) -> Iterator[None]:
    """Launch on the stream aside, after what is on the caller's."""
    with torch.cuda.device(stream.device):
        stream.aside.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream.aside):
            yield


@contextlib.contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Record what is launched inside. When that fails, random numbers go on where they were."""
    collects = gc.isenabled()
    gc.disable()  # what it finds may launch, or free what must not be freed now
    device = torch.cuda.current_device()
    generator = torch.cuda.default_generators[device]
    state = generator.get_state()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is empty
                graph.capture_end()
    except BaseException:
        # A generator that took part in a graph that never ended refuses to go on; a copy of it does not.
        generator.graphsafe_set_state(generator.clone_state())
        generator.set_state(state)
        raise
    finally:
        if collects:
            gc.enable()


def _count_of_nodes(graph: torch.cuda.CUDAGraph) -> int:
    count = ctypes.c_size_t()
    code = driver().cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    return 0 if code else count.value
