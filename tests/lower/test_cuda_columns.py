"""Columns on GPUs that are swept more than once, as the channels of a batch are where they lie side by side.

Kernels run on the CPU, and NVRTC compiles them.
"""

import pytest
import torch
import torch.nn.functional as F
from cuda_on_host import CudaOnHost
from native_checking import cases_of
from test_cuda_kernels import as_on_gpu, found_nvrtc, needs_nvrtc, randn, source_of  # noqa: F401  (a fixture)

import bothways
from bothways.building.cuda_build import CudaKernel, CudaSource, compiled
from bothways.lower.dialects.cuda import thirds
from bothways.lower.dialects.cuda.arranging import ALONE, Phase, column_geometry, finishing_geometry
from bothways.lower.dialects.cuda.kernels import spell_kernel
from bothways.lower.dialects.cuda.prelude import HEAD, HELPERS
from bothways.lower.dialects.cuda.rows_and_columns import all_arranged
from bothways.lower.dialects.cuda.thirds import Third, ThirdPhase
from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.steps import lower
from bothways.lower.schedule.tree import Columns, Kernel

pytestmark = pytest.mark.usefixtures("as_on_gpu")

# Batch, channels, height, width; whether each channel's elements are one block's.
BATCHES = {
    "as many rows for each thread": ((2, 16, 16, 16), True),
    "rows that are no multiple": ((3, 16, 7, 9), True),
    "few channels": ((2, 3, 6, 6), True),
    "channels that end amid a tile": ((2, 42, 5, 5), True),
    "as many rows as a block takes": ((2, 8, 16, 16), True),
    "more rows, and no multiple": ((1, 8, 3, 683), False),
    "parts that are alike": ((4, 16, 32, 32), False),
    "a part that is shorter": ((5, 12, 29, 31), False),
}


# Thousands of numbers of single precision are added up in another order; of double precision that is not seen.
CLOSE = {torch.float32: {"rtol": 2e-5, "atol": 5e-4}, torch.float64: {"rtol": 1e-9, "atol": 1e-9}}


def normalised(x, w, b, mean, var):
    return F.relu(F.batch_norm(x, mean, var, w, b, True)) + x


def step(x, w, b, gradient, mean, var):
    result = normalised(x, w, b, mean, var)
    return [result, *torch.autograd.grad(result, [x, w, b], gradient)]


def on_host(function, kernels):
    def compile(graph, inputs):
        lowered = lower(graph, inputs)
        program = KernelProgram(lowered, dialect=CudaOnHost())
        kernels.append([one for one in lowered.steps if isinstance(one, Kernel)])
        return program.run

    return bothways.compile(function, backend=bothways.backends.aot(fw_compiler=compile))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BATCHES)
def test_channels_of_a_batch(name, dtype):
    """One kernel forward and one backward for few rows, else one for each sweep; numbers are eager's either way."""
    torch.manual_seed(0)
    shape, alone = BATCHES[name]
    rows = shape[0] * shape[2] * shape[3]
    assert alone == (rows <= ALONE)
    x, gradient = (randn(*shape, dtype=dtype).to(memory_format=torch.channels_last) for _ in range(2))
    x.requires_grad_()
    w, b = (torch.rand(shape[1], dtype=dtype).add(0.5).requires_grad_() for _ in range(2))
    own, expected = ([torch.zeros(shape[1], dtype=dtype), torch.ones(shape[1], dtype=dtype)] for _ in range(2))
    kernels = []
    forward = on_host(normalised, kernels)
    whole = on_host(step, kernels)
    for _ in range(2):
        result = forward(x, w, b, *own)
        found = [result, *torch.autograd.grad(result, [x, w, b], gradient)]
        torch.testing.assert_close(found, step(x, w, b, gradient, *expected), **CLOSE[dtype])
        found = whole(x, w, b, gradient, *own)
        torch.testing.assert_close(found, step(x, w, b, gradient, *expected), **CLOSE[dtype])
        torch.testing.assert_close(own, expected, **CLOSE[dtype])
    assert [len(one) for one in kernels] == ([1, 1, 1] if alone else [2, 2, 3])


@needs_nvrtc
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [2, 14, 60])
def test_any_number_of_sums_fits_the_memory_that_threads_share(count, dtype):
    def sums(x):
        return [(x * (number + 1)).square().sum(0) for number in range(count)]

    [case] = cases_of("case", sums, [randn(3000, 64, dtype=dtype)])[:1]
    assert compiled(source_of(case), "sm_90")


def test_geometries_fit_the_memory_that_threads_share():
    def sums(x):
        mean = x.mean(0)
        return [((x - mean) * (number + 1)).square().sum(0) for number in range(9)]

    for rows in (500, 5000):
        [case] = cases_of("case", sums, [randn(rows, 64, dtype=torch.float64)])[:1]
        steps = lower(case.graph, case.given).steps
        for columns in (one.body[0] for one in steps if isinstance(one, Kernel) and isinstance(one.body[0], Columns)):
            reductions = sum(len(getattr(part, "accumulators", ())) for part in columns.body)
            for geometry in (column_geometry(columns), finishing_geometry(columns, 64)):
                assert geometry.threads * geometry.width * 8 * reductions <= 48 << 10
                assert geometry.threads >= 32


@needs_nvrtc
@pytest.mark.parametrize("rows", [ALONE, 4 * ALONE])
def test_sweeps_over_columns_compile(rows):
    [case] = cases_of("case", lambda x: [torch.softmax(x, 0)], [randn(rows, 64)])[:1]
    assert compiled(source_of(case), "sm_90")


def test_parts_are_put_together_by_few_threads():
    """What each block reads of the parts of its columns is little, however many blocks there are."""
    [case] = cases_of("case", lambda x: [x - x.mean(0)], [randn(32768, 64)])[:1]
    lowered = lower(case.graph, case.given)
    [kernel] = [one for one in lowered.steps if isinstance(one, Kernel)]
    geometry = column_geometry(kernel.body[0])
    assert geometry.splits > 1 and geometry.across * geometry.width * 4 == 64
    program = KernelProgram(lowered, dialect=CudaOnHost())
    assert all(isinstance(one, Phase) for one in lowered.steps)
    torch.testing.assert_close(program.run(*case.given)[0], case.given[0] - case.given[0].mean(0))


def residual(x, w, b, other, below):
    """What a block of a ResNet does to the gradients of two: they are added before the norm's backward."""
    y = F.relu(F.batch_norm(x, None, None, w, b, True) + other)
    return (y * below[0] + torch.relu(y) * below[1]).sum()


def gradients(function, x, *more):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    result = function(x, *more)
    return [result, *torch.autograd.grad(result, [x, *more[:3]])]


@pytest.mark.parametrize("limit", [1, 1 << 40])
@pytest.mark.parametrize("name", BATCHES)
def test_columns_that_no_cache_holds_are_three_kernels(name, limit, monkeypatch):
    """Each sweep is a kernel, and what is known of a column is computed between them, once: running statistics change
    by one step."""
    monkeypatch.setattr(thirds, "BYTES_OF_CACHE", limit)
    torch.manual_seed(0)
    shape, alone = BATCHES[name]
    x, gradient = (randn(*shape).to(memory_format=torch.channels_last) for _ in range(2))
    x.requires_grad_()
    w, b = (torch.rand(shape[1]).add(0.5).requires_grad_() for _ in range(2))
    own, expected = ([torch.zeros(shape[1]), torch.ones(shape[1])] for _ in range(2))
    kernels = []
    forward = on_host(normalised, kernels)
    for _ in range(2):
        result = forward(x, w, b, *own)
        found = [result, *torch.autograd.grad(result, [x, w, b], gradient)]
        torch.testing.assert_close(found, step(x, w, b, gradient, *expected), **CLOSE[torch.float32])
        torch.testing.assert_close(own, expected, **CLOSE[torch.float32])
    for half in kernels:
        kinds = [one.third for one in half if isinstance(one, ThirdPhase)]
        assert kinds == (list(Third) if limit == 1 and isinstance(half[0].body[0], Columns) else [])


@needs_nvrtc
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_three_kernels_compile(dtype, monkeypatch):
    monkeypatch.setattr(thirds, "BYTES_OF_CACHE", 1)
    [case] = cases_of("case", lambda x: [x - x.mean(0)], [randn(3000, 72, dtype=dtype)])[:1]
    steps = [part for one in lower(case.graph, case.given).steps for part in all_arranged([one])]
    assert [one.third for one in steps] == list(Third)
    for kernel in steps:
        text = spell_kernel(kernel, None)
        one = CudaKernel("kernel", "", text.parameters, text.body, text.threads, text.together, text.aligned)
        assert found_nvrtc().compile(CudaSource((one,), {}, HELPERS, HEAD).whole(str(one)), "sm_90")


@pytest.mark.parametrize("limit", [1, 1 << 40])
def test_what_takes_more_to_read_again_is_kept_for_the_next_sweep(limit, monkeypatch):
    """The gradient that a norm's backward gets is made of four tensors, which its second sweep does not read."""
    monkeypatch.setattr(thirds, "BYTES_OF_CACHE", limit)
    torch.manual_seed(0)
    x, other, *below = (randn(3, 16, 20, 19).to(memory_format=torch.channels_last) for _ in range(4))
    w, b = (torch.rand(16).add(0.5).requires_grad_() for _ in range(2))
    other.requires_grad_()
    kernels = []
    found = gradients(on_host(residual, kernels), x, w, b, other, below)
    torch.testing.assert_close(found, gradients(residual, x, w, b, other, below), **CLOSE[torch.float32])
    phases = [one for one in kernels[-1] if isinstance(one, Phase)]
    large = [sum(memory.shape == x.shape for memory in one.memories if memory not in one.written) for one in phases]
    assert large[0] >= 4 and large[-1] <= 2


def test_equal_layers_are_built_once():
    """What parts of a reduction are written to is given in one order, wherever Python has put the objects."""
    sources = []

    class Spelling(CudaOnHost):
        def spell(self, routines, names):
            spelled = super().spell(routines, names)
            sources.append(spelled.source)
            return spelled

    def compile(graph, inputs):
        return KernelProgram(lower(graph, inputs), dialect=Spelling()).run

    def stack(x, matrix, *weights):
        for w, b in zip(weights[::2], weights[1::2], strict=True):
            x = F.linear(F.layer_norm(x, (16,), w, b), matrix, b)
        return x

    given = [torch.randn(1024, 16, requires_grad=True), torch.randn(16, 16)]
    given += [torch.randn(16, requires_grad=True) for _ in range(28)]
    bothways.compile(stack, backend=bothways.backends.aot(fw_compiler=compile))(*given).sum().backward()
    bodies = [kernel.body for kernel in sources[-1].kernels]
    assert len(set(bodies)) == len(bodies)
