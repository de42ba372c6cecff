"""Graphs with tensors on a GPU and on the CPU are two programs. Here no GPU is there: what claims to be on one is the
CPU's, and its half runs as kernels for GPUs under a shim."""

import copy
from dataclasses import replace

import pytest
import torch
from cuda_on_host import CudaOnHost
from staying import stays_compiled
from test_optimizer_kernels import OPTIMIZERS
from torch import nn

import bothways
from bothways.backends.mixed import halves_of, place_numbers, run_halves
from bothways.fake import thin_outline
from bothways.lower.dialects.c.dialect import C
from bothways.lower.host.program import KernelProgram
from bothways.lower.ir import builder
from bothways.lower.schedule.steps import lower
from bothways.testing import difference

GPU = torch.device("cuda", 0)


def claim(graph, on_gpu):
    """Say of some tensors of a graph that they are on a GPU."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else [value]
        made = [
            thin_outline(tuple(item.shape), item.stride(), item.dtype, GPU)
            if isinstance(item, torch.Tensor) and on_gpu(item)
            else item
            for item in values
        ]
        node.meta["val"] = tuple(made) if isinstance(value, (tuple, list)) else made[0]


class Mixed:
    """A compiler of graphs that counts launches, calls of ATen and words of its halves."""

    def __init__(self, monkeypatch):
        self.programs, self.halves = {}, None
        made = builder.Builder.__init__

        def init(b, device):
            made(b, device)
            b.on_gpu = device.type == "cuda"

        monkeypatch.setattr(builder.Builder, "__init__", init)

    def __call__(self, graph, inputs):
        claim(graph, lambda tensor: tensor.dim() > 0)
        halves = halves_of(graph)
        assert halves is not None
        self.halves = halves = replace(halves, device=torch.device("cpu"))
        return run_halves(halves, inputs, self.compile, False)

    def compile(self, graph, inputs, where):
        if where == "on the CPU":
            return KernelProgram(lower(graph, inputs), dialect=C()).run
        claimed = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        lowered = lower(graph, claimed)
        assert lowered.device.type == "cuda"
        lowered.device = torch.device("cpu")
        program = self.programs[where] = KernelProgram(lowered, dialect=CudaOnHost())
        return program.run

    @property
    def launches(self):
        routines = self.programs["on the GPU"].kernels.source.routines
        return [launch for launches in routines.values() for launch in launches]


def parameters():
    torch.manual_seed(0)
    sizes = [(3, 50), (700,), (2, 2, 2, 2), (1,), (9000,), (33,)]
    return [nn.Parameter(torch.randn(size)) for size in sizes]


def states(optimizer, step, steps=4):
    found = []
    weights = optimizer.param_groups[0]["params"]
    for number in range(steps):
        torch.manual_seed(number)
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        step()
        found.append(copy.deepcopy(([weight.detach() for weight in weights], optimizer.state_dict()["state"])))
    return found


# Those whose counters are on the CPU, and one launch is enough for whatever lies alike.
COUNTING = ["Adam", "Adam with all", "AdamW", "AdamW amsgrad", "Adamax", "NAdam", "RAdam", "Adagrad", "ASGD"]


@pytest.mark.parametrize("name", COUNTING)
def test_an_optimizer_whose_counters_are_on_the_cpu(name, monkeypatch):
    mixed = Mixed(monkeypatch)
    eager, ours = (OPTIMIZERS[name](parameters(), foreach=True) for _ in range(2))
    backend = bothways.backends.aot(fw_compiler=mixed)
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(lambda: ours.step(), backend=backend, fullgraph=True)
        found = states(ours, compiled)
    assert difference(states(eager, eager.step), found, tol=2e-6) is None
    assert len(bothways.history(compiled)) <= 2
    assert len(mixed.launches) <= 4  # of six parameters; one has a single element, and is done by itself


def test_many_parameters_are_one_launch(monkeypatch):
    mixed = Mixed(monkeypatch)
    weights = [nn.Parameter(torch.randn(2 + number % 7, 3)) for number in range(100)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, foreach=True)
    backend = bothways.backends.aot(fw_compiler=mixed)
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(lambda: optimizer.step(), backend=backend, fullgraph=True)
        for _ in range(2):
            compiled()
    [launch] = mixed.launches
    assert len(launch.arguments) == 1 + 7 * len(weights)  # how large each is, and where its six memories are


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.float64], ids=str)
def test_a_number_that_is_written_to_places(dtype, monkeypatch):
    """As ``y[places, 1] = 0.5`` is one, which lies on the CPU: it has to be of the dtype of what it is written to."""
    mixed = Mixed(monkeypatch)

    def program(x, places, number):
        y = x.clone()
        y[places, 1] = number * 2
        return y * number

    compiled = bothways.compile(program, backend=bothways.backends.aot(fw_compiler=mixed), fullgraph=True)
    for start in (1, 3):
        with torch.device("cpu"):
            values = torch.ones(4, 3, dtype=dtype), torch.tensor([0, 2]), torch.tensor(start, dtype=dtype)
        with stays_compiled():
            assert difference(program(*values), compiled(*values)) is None
    assert mixed.halves.numbers is not None


def test_sizes_that_change_are_those_of_each_half(monkeypatch):
    mixed = Mixed(monkeypatch)

    def program(x, count):
        return x * 2 + (count + 1), count * 3

    backend = bothways.backends.aot(fw_compiler=mixed)
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(program, backend=backend, fullgraph=True)
        for size in (3, 5, 6, 9):
            x, count = torch.arange(float(size), device="cpu"), torch.tensor(float(size), device="cpu")
            assert difference(program(x, count), compiled(x, count)) is None
    assert len(bothways.history(compiled)) == 2


def by_hand(build):
    """A graph of two inputs, ``x`` on the CPU and ``w`` on a GPU, that returns what ``build`` gives."""
    graph = torch.fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    x.meta["val"], w.meta["val"] = (thin_outline((4,), (1,), torch.float32, at) for at in (torch.device("cpu"), GPU))

    def call(target, at, *args, shape=(4,), **kwargs):
        node = graph.call_function(target, args, kwargs)
        node.meta["val"] = thin_outline(shape, (1,) * len(shape), torch.float32, at)
        return node

    graph.output(tuple(build(x, w, call)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


aten, CPU = torch.ops.aten, torch.device("cpu")


def test_what_a_program_moves_to_the_gpu_is_moved_before():
    def build(x, w, call):
        moved = call(aten._to_copy.default, GPU, x, device=GPU, non_blocking=True)
        return [call(aten.neg.default, CPU, x), call(aten.mul.Tensor, GPU, moved, w), None, w]

    halves = halves_of(by_hand(build))
    assert [place for place, _ in halves.moved] == [0] and halves.numbers is None
    assert (halves.on_gpu.inputs, halves.on_gpu.outputs) == ((1,), (1, 3))
    assert (halves.on_cpu.inputs, halves.on_cpu.outputs) == ((0,), (0,))
    [[_, node]] = halves.moved
    node.kwargs = {}
    x, w = torch.rand(4), torch.rand(4)
    seen = []

    def compile(graph, inputs, where):
        seen.append((where, len(inputs)))
        return graph.forward

    found = run_halves(replace(halves, device=CPU), [x, w], compile, False)(x, w)
    assert difference(found, (-x, x * w, None, w)) is None
    assert seen == [("on the GPU", 2), ("on the CPU", 1)]
    values = [x, w]
    assert difference(run_halves(replace(halves, device=CPU), [x, w], compile, True)(values), found) is None
    assert values == []


def test_numbers_that_became_tensors_are_on_the_gpu_that_reads_them():
    def build(x, w, call):
        read, given, both = (call(aten._to_copy.default, CPU, number, shape=()) for number in (2.5, 1, True))
        moved = call(aten.add.Tensor, GPU, call(aten.mul.Tensor, GPU, w, read), both)
        return [moved, given, call(aten.add.Tensor, CPU, x, both)]

    graph = by_hand(build)
    place_numbers(graph)
    numbers = [node for node in graph.graph.nodes if node.target is aten._to_copy.default]
    assert [node.meta["val"].device for node in numbers] == [GPU, CPU, CPU]
    assert graph.graph.find_nodes(op="output")[0].args[0][1] is numbers[1]


REFUSED = {
    "a result of the GPU is read by the CPU": lambda x, w, call: [
        call(aten.add.Tensor, CPU, x, call(aten._to_copy.default, CPU, w, device=CPU))
    ],
    "random numbers of the CPU": lambda x, w, call: [call(aten.rand_like.default, CPU, x), w],
    "a tensor, not a number": lambda x, w, call: [call(aten.mul.Tensor, GPU, w, x)],
    "what is moved is computed": lambda x, w, call: [
        call(aten._to_copy.default, GPU, call(aten.neg.default, CPU, x), device=GPU)
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_halves_cannot_have_to_do_with_each_other(name):
    assert halves_of(by_hand(REFUSED[name])) is None


def test_a_graph_of_one_device_is_no_halves():
    graph = by_hand(lambda x, w, call: [call(aten.neg.default, CPU, x)])
    claim(graph, lambda tensor: False)
    assert halves_of(graph) is not None
    claim(graph, lambda tensor: True)
    assert halves_of(graph) is None
