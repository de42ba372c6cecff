"""Kernels for NVIDIA GPUs where there is none: their text is compiled by NVRTC, where that is found, and runs on a CPU
through a shim whose blocks and threads take turns. What it computes is compared with eager.
"""

import ctypes
import itertools
import math
import re
import subprocess
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from cuda_on_host import CudaOnHost
from native_checking import cases_of

import bothways
from bothways import torch_compat
from bothways.backends import native
from bothways.backends.for_kernels import FOR_KERNELS
from bothways.building import cuda_build, nvrtc
from bothways.building.cuda_build import AS_GIVEN, BEHIND, BEHIND_NUMBER, LITERAL, Launch, Loaded, compiled, planned
from bothways.calls import launching
from bothways.errors import BuildFailed
from bothways.lower.dialects.cuda import arranging
from bothways.lower.dialects.cuda.arranging import Phase, arranged, column_geometry, index_type, row_geometry
from bothways.lower.dialects.cuda.dialect import Cuda
from bothways.lower.dialects.cuda.kernels import spell
from bothways.lower.dialects.cuda.prelude import MANY_WORDS
from bothways.lower.host.program import KernelProgram
from bothways.lower.ir import builder
from bothways.lower.ir.lowerings import products
from bothways.lower.ir.prims import Extern
from bothways.lower.schedule.routines import schedule
from bothways.lower.schedule.steps import lower
from bothways.lower.schedule.tree import Columns, Kernel

CUDNN, CUDNN_BACKWARD = torch.ops.aten.cudnn_batch_norm, torch.ops.aten.cudnn_batch_norm_backward


@pytest.fixture
def as_on_gpu(monkeypatch):
    """What is lowered is lowered as for a GPU, though its memory is the CPU's."""
    made = builder.Builder.__init__

    def init(self, device):
        made(self, device)
        self.on_gpu = True

    monkeypatch.setattr(builder.Builder, "__init__", init)


def found_nvrtc():
    try:
        return nvrtc.nvrtc()
    except nvrtc.NoNVRTC:
        return None


needs_nvrtc = pytest.mark.skipif(found_nvrtc() is None, reason="there is no NVRTC here")


def cases(function, *inputs, grad=False):
    return cases_of("case", lambda *values: [function(*values)], list(inputs), grad=grad)


def kernels_of(function, *inputs, grad=False):
    [case] = cases(function, *inputs, grad=grad)
    steps = lower(case.graph, [tensor.detach() for tensor in case.given]).steps
    return [step for step in steps if isinstance(step, Kernel)]


def source_of(case):
    lowered = lower(case.graph, [tensor.detach() for tensor in case.given])
    lowered.steps = [
        one for step in lowered.steps for one in ([step] if isinstance(step, Extern) else arranged(step))
    ]
    return spell(list(schedule(lowered).routines.values()), lowered.sizes)[0]


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def normalised(x):
    mean = x.mean((0, 2, 3), keepdim=True)
    return (x - mean) * torch.rsqrt((x - mean).square().mean((0, 2, 3), keepdim=True) + 1e-5)


# What is computed, of tensors of these shapes; integers below a number come last.
PROGRAMS = {
    "pointwise": (lambda x: x.sin() * 2 + x.exp() - x / 3, [(37, 64)]),
    "a number of elements that is no multiple": (lambda x: (x * x + 1).sqrt(), [(1003,)]),
    "a row beside a matrix": (lambda x, b: F.gelu(x + b), [(9, 64), (64,)]),
    "across memory": (lambda x, y: x.t() * 2 + y, [(24, 40), (40, 24)]),
    "every other one": (lambda x: x[:, ::2] * x[:, 1::2], [(9, 40)]),
    "backwards": (lambda x: x.flip(1) + 1, [(9, 40)]),
    "one element": (lambda x: x.reshape(()) * 2 + 1, [(1,)]),
    "rows": (lambda x: torch.softmax(x, -1), [(37, 64)]),
    "rows of a few": (lambda x: (x * 2).sum(-1), [(100, 7)]),
    "rows with a rest": (lambda x: torch.softmax(x[:, :101], -1), [(9, 104)]),
    "rows kept by a block": (lambda x: torch.log_softmax(x, -1), [(3, 5000)]),
    "few, long rows": (lambda x: torch.softmax(x, -1), [(2, 20008)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (300,), w, b), [(40, 300), (300,), (300,)]),
    "layer norm, GELU": (lambda x, w, b: F.gelu(F.layer_norm(x, (64,), w, b)), [(21, 64), (64,), (64,)]),
    "columns": (lambda x: (x * x).sum(0), [(37, 64)]),
    "long columns": (lambda x: (x - x.mean(0)).square().sum(0), [(2000, 51)]),
    "everything": (lambda x: (x - x.mean()) / (x.std() + 1), [(40, 1024)]),
    "everything, and no multiple": (lambda x: x.sum(), [(20001,)]),
    "the largest and the smallest": (lambda x: x.amax(-1) - x.amin(-1), [(5, 1000)]),
    "several loops": (normalised, [(4, 8, 6, 6)]),
    "joined": (lambda x, y: torch.cat([x * 2, y], 1).relu(), [(9, 40), (9, 10)]),
    "chosen by indices": (lambda w, i: F.embedding(i, w) * 2, [(50, 16)], (7, 3), 50),
    "chosen by two indices": (lambda x, i: x[:, i, i // 2] * 2, [(5, 50, 30)], (7,), 50),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), [(33, 101)], (33,), 101),
}
# How far from eager, as a part of the whole: eager itself is as far from the truth.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def inputs_of(name, dtype, grad=True):
    _, shapes, *integers = PROGRAMS[name]
    torch.manual_seed(0)
    given = [randn(*shape, dtype=dtype, grad=grad) for shape in shapes]
    return [*given, torch.randint(0, integers[1], integers[0])] if integers else given


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compute_what_eager_does(name, dtype):
    [case] = cases(PROGRAMS[name][0], *inputs_of(name, dtype), grad=True)
    given = [tensor.detach() for tensor in case.given]
    program = KernelProgram(lower(case.graph, given), dialect=CudaOnHost())
    assert program.kernels.source.kernels
    for found, expected in zip(program.run(*given), case.graph(*given), strict=True):
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
        found, expected = found.double(), expected.double()
        assert (found - expected).norm() <= TOLERANCES[dtype] * expected.norm()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_kernels_of_integers_and_truths(dtype):
    x = torch.randint(0, 2 if dtype == torch.bool else 90, (33, 50)).to(dtype)
    functions = [lambda x: x.sum(-1), lambda x: (x > 1).any(0), lambda x: (x == 1).all(), lambda x: x.float()]
    for function in functions:
        [case] = cases(function, x)
        program = KernelProgram(lower(case.graph, [x]), dialect=CudaOnHost())
        for found, expected in zip(program.run(x), case.graph(x), strict=True):
            assert torch.equal(found, expected) and found.dtype == expected.dtype


def test_memory_that_begins_anywhere():
    """What vectors could not be read from is read one by one."""
    [case] = cases(lambda x: torch.softmax(x * 2, -1), randn(8, 64))
    program = KernelProgram(lower(case.graph, case.given), dialect=CudaOnHost())
    for offset in (0, 1, 3):
        x = randn(8 * 64 + 4)[offset : offset + 8 * 64].view(8, 64)
        torch.testing.assert_close(program.run(x)[0], torch.softmax(x * 2, -1))


def long_rows(x, t):
    """Sweeps of one kernel, of which the last writes rows that no vector fits and the others read such that fit."""
    logits = x[:, :5001]
    return torch.log_softmax(logits, 1), F.cross_entropy(logits, t)


def test_a_vector_is_read_only_where_its_memory_is_aligned_for_it(as_on_gpu):
    x = randn(300, 5008, dtype=torch.bfloat16)
    [case] = cases_of("case", lambda *values: list(long_rows(*values)), [x, torch.randint(0, 5001, (300,))], grad=False)
    masks = {}
    for kernel in source_of(case).kernels:
        masks = dict(re.findall(r"\(\(uint64_t\)(\w+) & (\d+)\)", kernel.aligned))
        for width, pointer in re.findall(r"(?:load|store)_pairs_(\d+)\([^;]*?(\w+_p_\d+)[^;]*aligned", kernel.body):
            assert int(masks[pointer]) >= min(16, 2 * int(width)) - 1
    assert masks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_loss_takes_its_probabilities_from_the_logits(dtype, as_on_gpu):
    """Of a whole step's cross-entropy nothing as large as the logits is in memory but their gradient."""

    def function(x, t):
        logs = torch.log_softmax(x, 1)
        loss, weight = torch.ops.aten.nll_loss_forward(logs, t, None, 1, -100)
        back = torch.ops.aten.nll_loss_backward(torch.ones_like(loss), logs, t, None, 1, -100, weight)
        return [loss, torch.ops.aten._log_softmax_backward_data(back, logs, 1, x.dtype)]

    x, t = randn(40, 301, dtype=dtype), torch.randint(0, 301, (40,))
    t[3] = -100
    [case] = cases_of("case", function, [x, t], grad=False)
    lowered = lower(case.graph, [x, t])
    large = {memory for step in lowered.steps for memory in step.memories if math.prod(memory.shape) == x.numel()}
    assert len(large) == 2
    for found, expected in zip(KernelProgram(lowered, dialect=CudaOnHost()).run(x, t), function(x, t), strict=True):
        torch.testing.assert_close(found, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] / 10)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("centre", [0.0, 100.0])
def test_a_batch_is_normalised_by_one_pass_over_its_statistics(centre, form, as_on_gpu):
    """Two launches, and as precise as two passes, wherever the numbers are."""

    def function(x, w, b, mean, var):
        y, *statistics = torch.ops.aten.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5)
        return [y.relu(), *statistics]

    x = (randn(8, 16, 12, 12) + centre).to(memory_format=form)
    given = [x, *torch.rand(4, 16)]
    [case] = cases_of("case", function, [value.clone() for value in given], grad=False)
    lowered = lower(case.graph, given)
    assert sum(len(arranged(step)) for step in lowered.steps) <= 2
    program = KernelProgram(lowered, dialect=CudaOnHost())
    own, truth = [value.clone() for value in given], [value.double() for value in given]
    for found, expected in zip(program.run(*own), function(*truth), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6 * (1 + centre))
    torch.testing.assert_close([value.double() for value in own[3:]], truth[3:], rtol=1e-5, atol=1e-6)


def test_cudnns_normalisation_is_atens_for_kernels():
    x, w, b, mean, var, gradient = randn(4, 3, 5), *torch.rand(4, 3), randn(4, 3, 5)
    forward, backward = (FOR_KERNELS[operation] for operation in (CUDNN.default, CUDNN_BACKWARD.default))
    y, save_mean, save_rstd, reserve = forward(x, w, b, mean, var, True, 0.1, 1e-5)
    given = [value.clone().requires_grad_() for value in (x, w, b)]
    expected = F.batch_norm(given[0], None, None, *given[1:], True)
    torch.testing.assert_close(y, expected)
    expected.backward(gradient)
    found = backward(x, gradient, w, mean, var, save_mean, save_rstd, 1e-5, reserve)
    torch.testing.assert_close(list(found), [value.grad for value in given])


def test_what_is_taken_from_a_value_that_is_spread(as_on_gpu):
    """Along the taken dimension the index counts, whichever other dimension the value is repeated along."""
    x, index = randn(1, 5), torch.tensor([[4, 0, 3, 0, 1]])
    spread_down, spread_across = (lambda x: (x * 2).expand(3, 5)), (lambda x: (x * 2).t().expand(5, 5))
    for spread in (spread_down, spread_across):

        def function(x, index, spread=spread):
            return spread(x).gather(1, index)

        [case] = cases(function, x, index)
        [found] = KernelProgram(lower(case.graph, [x, index]), dialect=CudaOnHost()).run(x, index)
        torch.testing.assert_close(found, function(x, index))


# Programs take turns with the dtypes.
COMPILED = [
    ("sm_90", (torch.bfloat16, torch.float32)),
    *(pytest.param(arch, (dtype,), marks=pytest.mark.slow) for arch in ("sm_90", "sm_80") for dtype in TOLERANCES),
    pytest.param("sm_75", (torch.bfloat16,), marks=pytest.mark.slow),
]


@needs_nvrtc
@pytest.mark.parametrize("arch, dtypes", COMPILED)
def test_every_kernel_compiles(dtypes, arch, as_on_gpu):
    kernels = {}
    for name, dtype in zip(PROGRAMS, itertools.cycle(dtypes)):
        for case in cases(PROGRAMS[name][0], *inputs_of(name, dtype), grad=True):
            source = source_of(case)
            kernels |= {str(kernel): (source, kernel) for kernel in source.kernels}
    for source, kernel in kernels.values():
        assert len(found_nvrtc().compile(source.whole(str(kernel)), arch)) > 1000


@needs_nvrtc
def test_kernels_are_compiled_side_by_side():
    [case] = cases(lambda x: (x.sum(0), x.t().exp().sum(1), x.softmax(-1))[2].sum(0), randn(64, 64))
    source = source_of(case)
    assert len(compiled(source, "sm_90")) == min(len(source.kernels), cuda_build.cpus(), 8)


@needs_nvrtc
def test_architectures_that_nvrtc_knows():
    assert found_nvrtc().knows("sm_90") and not found_nvrtc().knows("sm_20")


@needs_nvrtc
def test_what_does_not_compile_is_said():
    with pytest.raises(BuildFailed, match="error"):
        found_nvrtc().compile("KERNEL nonsense", "sm_90")


# How threads share kernels out.


def test_a_softmax_reads_its_row_once():
    [kernel] = kernels_of(lambda x: torch.softmax(x, -1), randn(4096, 4096))
    geometry = row_geometry(kernel)
    assert (geometry.width, geometry.team, geometry.spans, geometry.splits) == (4, 256, 4, 1)
    [case] = cases(lambda x: torch.softmax(x, -1), randn(64, 4096))
    text = str(source_of(case))
    assert text.count("load_float_4(") == 1


def test_halves_are_read_by_sixteen_bytes():
    [kernel] = kernels_of(lambda x: torch.softmax(x, -1), randn(512, 1024, dtype=torch.bfloat16))
    assert row_geometry(kernel).width == 8


def test_few_long_rows_take_several_passes():
    [kernel] = kernels_of(lambda x: torch.softmax(x, -1), randn(2, 1 << 16))
    phases = arranged(kernel)
    assert [type(phase) for phase in phases] == [Phase] * 3 and phases[0].splits > 8


def test_long_columns_take_two_passes_and_short_ones_one():
    [kernel] = kernels_of(lambda x: x.sum(0), randn(4096, 256))
    assert len(arranged(kernel)) == 2 and isinstance(kernel.body[0], Columns)
    [kernel] = kernels_of(lambda x: x.sum(0), randn(4, 4096))
    assert len(arranged(kernel)) == 1 and column_geometry(kernel.body[0]).splits == 1


def test_indices_are_as_wide_as_they_have_to_be(monkeypatch):
    [case] = cases(lambda x: torch.softmax(x.t() + 1, -1), randn(40, 24))
    [kernel] = kernels_of(lambda x: torch.softmax(x.t() + 1, -1), randn(40, 24))
    assert index_type(kernel) == "int"
    monkeypatch.setattr(arranging, "INT_LIMIT", 100)
    assert index_type(kernel) == "int64_t"
    program = KernelProgram(lower(case.graph, case.given), dialect=CudaOnHost())
    torch.testing.assert_close(program.run(*case.given)[0], torch.softmax(case.given[0].t() + 1, -1))


def test_what_is_cheap_is_computed_where_it_is_read(as_on_gpu):
    """A layer norm in half precision is one kernel; its backward is one for the rows and one for the columns."""
    x, w, b = (randn(*shape, dtype=torch.bfloat16) for shape in ((256, 1024), (1024,), (1024,)))
    assert len(kernels_of(lambda x, w, b: F.gelu(F.layer_norm(x, (1024,), w, b)), x, w, b)) == 1
    found = []

    def keep(graph, inputs):
        steps = lower(graph, inputs).steps
        found.append([len(step.written) for step in steps if isinstance(step, Kernel)])
        return graph.forward

    backend = bothways.backends.aot(fw_compiler=keep)
    given = [value.requires_grad_() for value in (x, w, b)]
    bothways.compile(lambda x, w, b: F.gelu(F.layer_norm(x, (1024,), w, b)), backend=backend)(*given).sum().backward()
    assert [len(kernels) for kernels in found] == [1, 2]


# Products whose sizes are no multiples of a vector's.


def test_products_of_odd_sizes_are_padded(as_on_gpu, monkeypatch):
    monkeypatch.setattr(products, "WORTH", 1)
    torch.manual_seed(0)
    x, w = randn(2, 16, 64, dtype=torch.bfloat16, grad=True), randn(101, 64, dtype=torch.bfloat16, grad=True)
    classes, shapes = torch.randint(0, 101, (32,)), []

    def compile(graph, inputs):
        lowered = lower(graph, inputs)
        calls = [step for step in lowered.steps if isinstance(step, Extern)]
        shapes.extend([tuple(argument.shape) for argument in call.args] for call in calls)
        return KernelProgram(lowered, dialect=CudaOnHost()).run

    def loss(x, w):
        return F.cross_entropy(F.linear(x, w).flatten(0, 1), classes)

    compiled = bothways.compile(loss, backend=bothways.backends.aot(fw_compiler=compile))
    found = torch.autograd.grad(compiled(x, w), [x, w])
    assert sorted(shapes) == [[(32, 64), (64, 104)], [(32, 104), (104, 64)], [(104, 32), (32, 64)]]
    # On a GPU, ATen's logarithms are in single precision and rounded at the end; on a CPU their parts are rounded, too.
    logits = F.linear(x, w).flatten(0, 1)
    logs = torch.log_softmax(logits.detach().float(), 1).bfloat16().float()
    unit = torch.zeros_like(logs).scatter(1, classes[:, None], -1 / 32)
    gradient = (unit - logs.exp() * unit.sum(1, keepdim=True)).bfloat16()
    for one, other in zip(found, torch.autograd.grad(logits, [x, w], gradient), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert not found[1]._is_view()  # a parameter's gradient has memory of its own, and no more than it needs


@pytest.mark.parametrize(
    "sizes", [(33, 101, 64), (33, 101, 65), (33, 64, 101), (32, 101, 65), (33, 64, 64), (101, 32, 64)]
)
@pytest.mark.parametrize("across", list(itertools.product([False, True], repeat=2)))
def test_what_is_padded_leaves_as_it_should_be(sizes, across, as_on_gpu, monkeypatch):
    monkeypatch.setattr(products, "WORTH", 1)
    torch.manual_seed(0)
    rows, inner, columns = sizes
    operands = [
        randn(*reversed(shape), dtype=torch.bfloat16).t() if turned else randn(*shape, dtype=torch.bfloat16)
        for shape, turned in zip([(rows, inner), (inner, columns)], across, strict=True)
    ]
    backend = bothways.backends.aot(
        fw_compiler=lambda graph, inputs: KernelProgram(lower(graph, inputs), dialect=CudaOnHost()).run
    )
    for function in (lambda x, y: x @ y, lambda x, y: (x @ y) * 2, lambda x, y: (x * 2) @ (y + 1)):
        found, expected = bothways.compile(function, backend=backend)(*operands), function(*operands)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride() and not found._is_view()
        assert found.untyped_storage().size() == expected.untyped_storage().size()


def test_a_step_pads_its_weights_once(as_on_gpu, monkeypatch):
    monkeypatch.setattr(products, "WORTH", 1)
    torch.manual_seed(0)
    x, w = randn(32, 64, dtype=torch.bfloat16, grad=True), randn(101, 64, dtype=torch.bfloat16, grad=True)
    made = []

    def compile(graph, inputs):
        lowered = lower(graph, inputs)
        made.extend(dict.fromkeys(one for step in lowered.steps if isinstance(step, Kernel) for one in step.written))
        return KernelProgram(lowered, dialect=CudaOnHost()).run

    def step(x, w):
        return torch.autograd.grad(F.linear(x, w).square().sum(), [x, w])

    found = bothways.compile(step, backend=bothways.backends.aot(fw_compiler=compile))(x, w)
    assert [memory.shape for memory in made if memory.shape[:1] == (104,)] == [(104, 64)]
    for one, other in zip(found, step(x, w), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=0.5)  # bfloat16, and sums in another order


@pytest.mark.parametrize("shape", [(64, 32), (4, 16, 32)])
def test_columns_that_are_added_up_at_the_same_time_share_a_kernel(shape, as_on_gpu):
    """The gradients of a norm's weight and bias, and that of the bias of the layer before it."""
    found = []

    def compile(graph, inputs):
        lowered = lower(graph, inputs)
        kernels = [step for step in lowered.steps if isinstance(step, Kernel)]
        found.append(sum(isinstance(kernel.body[0], Columns) for kernel in kernels))
        return KernelProgram(lowered, dialect=CudaOnHost()).run

    def step(x, w, b, scale, shift):
        y = F.layer_norm(F.linear(x, w, b), (48,), scale, shift)
        return torch.autograd.grad((y * y.detach().cos()).sum(), [w, b, scale, shift])

    torch.manual_seed(0)
    given = [value.requires_grad_() for value in (randn(*shape), randn(48, 32), *(randn(48) for _ in range(3)))]
    for one, other in zip(
        bothways.compile(step, backend=bothways.backends.aot(fw_compiler=compile))(*given), step(*given), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert found == [1]


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_what_only_a_backward_reads_is_not_written_beside_the_forward(approximate, as_on_gpu):
    """In a step both are one graph, and the gradient of a gelu reads its tanh twice, of what the gelu reads."""
    kernels = []

    def compile(graph, inputs):
        lowered = lower(graph, inputs)
        kernels.extend(step for step in lowered.steps if isinstance(step, Kernel))
        return KernelProgram(lowered, dialect=CudaOnHost()).run

    def step(x, one, two):
        y = F.gelu(F.layer_norm(x @ one, (128,)), approximate=approximate) @ two
        return torch.autograd.grad(y.square().sum(), [one, two])

    torch.manual_seed(0)
    given = [value.requires_grad_() for value in (randn(64, 64), randn(64, 128), randn(128, 64))]
    found = bothways.compile(step, backend=bothways.backends.aot(fw_compiler=compile))(*given)
    for one, other in zip(found, step(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)
    forward = next(kernel for kernel in kernels if "gelu" in kernel.hint)
    assert [memory.shape for memory in forward.written if memory.shape == (64, 128)] == [(64, 128)]


def test_an_index_out_of_range_is_an_error_of_the_device(as_on_gpu):
    w, good = randn(8, 4), torch.tensor([1, 7])
    [case] = cases(lambda w, i: F.embedding(i, w) * 2, w, good)
    program = KernelProgram(lower(case.graph, [w, good]), dialect=CudaOnHost())
    torch.testing.assert_close(program.run(w, good)[0], F.embedding(good, w) * 2)
    with pytest.raises(RuntimeError, match="device-side assert"):
        program.run(w, torch.tensor([1, 8]))


# Launches.


def test_what_routines_launch_is_written_down_and_read_again():
    [case] = cases(lambda x: (x - x.mean()) / x.std(), randn(40, 1024))
    source = source_of(case)
    assert planned(source.plan) == source.routines
    [launches] = source.routines.values()
    assert len(launches) > 1 and any(how == BEHIND for launch in launches for _, how, _ in launch.arguments)


STAND_IN = """
#include <stdint.h>
#include <string.h>
uint64_t seen[64], *next = seen, table[4096]; int code, pushed;
int cuLaunchKernel(void *f, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **places, void **more) {
    *next++ = (uint64_t)f; *next++ = bx; *next++ = tx; *next++ = (uint64_t)stream;
    *next++ = *(uint64_t *)places[0]; *next++ = *(uint64_t *)places[1];
    memcpy(table, places[0], shared);
    return code;
}
int cuCtxGetCurrent(void **found) { *found = 0; return 0; }
int cuCtxPushCurrent_v2(void *which) { pushed += which == (void *)77; return 0; }
int cuCtxPopCurrent_v2(void **found) { ++pushed; return 0; }
int32_t aoti_torch_get_current_cuda_stream(int32_t device, void **stream) {
    *stream = (void *)(int64_t)(500 + device);
    return 0;
}
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A driver that writes down what it is asked for."""
    (tmp_path / "driver.c").write_text(STAND_IN)
    command = ["gcc", "-shared", "-fPIC", str(tmp_path / "driver.c"), "-o", str(tmp_path / "driver.so")]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(tmp_path / "driver.so"))
    known = torch_compat.c_function
    monkeypatch.setattr(launching, "driver", lambda: library)
    monkeypatch.setattr(launching, "context", lambda device: 77)
    stream = "aoti_torch_get_current_cuda_stream"
    monkeypatch.setattr(torch_compat, "c_function", lambda name: library[name] if name == stream else known(name))
    launching._make_launch.cache_clear()
    yield library
    launching._make_launch.cache_clear()


def test_all_launches_of_a_routine_are_one_call(stand_in):
    launches = [
        Launch("one", 3, 128, 0, ((0, AS_GIVEN, 0), (2, AS_GIVEN, 0))),
        Launch("two", 5, 256, 0, ((1, BEHIND, 16), (1, BEHIND_NUMBER, 2))),
    ]
    enter = launching.launcher(Loaded(1, {"run": launches}, {"one": 1001, "two": 1002}), "run", "ppn")
    x, area = torch.zeros(4), torch.zeros(64, dtype=torch.uint8)
    assert enter(x, area, 40) is None
    seen = list((ctypes.c_uint64 * 12).in_dll(stand_in, "seen"))
    assert seen[:6] == [1001, 3, 128, 501, x.data_ptr(), 40]
    assert seen[6:] == [1002, 5, 256, 501, area.data_ptr() + 16, area.data_ptr() + 40]
    assert ctypes.c_int.in_dll(stand_in, "pushed").value == 2
    with pytest.raises(TypeError):
        enter(x)


def test_a_kernel_takes_as_many_words_as_there_are_by_value(stand_in):
    words = (0, AS_GIVEN, 0), *((0, LITERAL, number) for number in range(1, MANY_WORDS))
    launch = Launch("one", 1, 32, 8 * MANY_WORDS, words)
    enter = launching.launcher(Loaded(0, {"run": [launch]}, {"one": 1001}), "run", "p")
    assert isinstance(enter, types.BuiltinFunctionType)  # none that goes through ctypes
    x = torch.zeros(4)
    enter(x)
    table = list((ctypes.c_uint64 * MANY_WORDS).in_dll(stand_in, "table"))
    assert table == [x.data_ptr(), *range(1, MANY_WORDS)]


def test_an_error_of_a_launch_is_raised(stand_in, monkeypatch):
    def raise_error(code):
        raise RuntimeError(f"CUDA error: {code}")

    monkeypatch.setattr(launching, "raise_error", raise_error)
    launch = Launch("one", 3, 128, 0, ((0, AS_GIVEN, 0), (0, AS_GIVEN, 0)))
    enter = launching.launcher(Loaded(0, {"run": [launch]}, {"one": 1001}), "run", "p")
    ctypes.c_int.in_dll(stand_in, "code").value = 701
    with pytest.raises(RuntimeError, match="CUDA error: 701"):
        enter(torch.zeros(4))


# Where there is no compiler for GPUs.


def test_without_nvrtc_there_is_one_warning_and_aten_runs(monkeypatch):
    def missing(self):
        return "libnvrtc is not there"

    monkeypatch.setattr(Cuda, "why_not", missing)
    gpu = [torch.empty(2, device="meta")]
    monkeypatch.setattr(torch.Tensor, "device", property(lambda self: torch.device("cuda", 0)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            dialect, reason = native._dialect_of(gpu)
    assert dialect is native.DIALECT and "libnvrtc is not there" in reason
    assert not native._has_kernels(gpu)  # what an optimizer does is left to the one operation that it is
    assert len([one for one in said if "libnvrtc" in str(one.message)]) <= 1


def test_where_nvrtc_is_looked_for(monkeypatch, tmp_path):
    folder = tmp_path / "nvidia" / "cuda_nvrtc" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnvrtc.so.12").write_text("no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(folder / "libnvrtc.so.12") in list(nvrtc._places())
    with pytest.raises(OSError):
        nvrtc._loaded(str(folder / "libnvrtc.so.12"))
