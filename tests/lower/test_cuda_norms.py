"""Norms on GPUs, whose backwards reduce rows and columns at once. Kernels run on the CPU, and NVRTC compiles them."""

import pytest
import torch
import torch.nn.functional as F
from cuda_on_host import CudaOnHost
from test_cuda_kernels import TOLERANCES, as_on_gpu, found_nvrtc, needs_nvrtc, randn  # noqa: F401  (a fixture)

import bothways
from bothways.building.cuda_build import CudaKernel, CudaSource
from bothways.lower.dialects.cuda import rows_and_columns
from bothways.lower.dialects.cuda.arranging import Phase
from bothways.lower.dialects.cuda.kernels import spell_kernel
from bothways.lower.dialects.cuda.prelude import HEAD, HELPERS
from bothways.lower.dialects.cuda.rows_and_columns import RowsAndColumns
from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.steps import lower
from bothways.lower.schedule.tree import Kernel

pytestmark = pytest.mark.usefixtures("as_on_gpu", "small_is_large")


@pytest.fixture
def small_is_large(monkeypatch):
    monkeypatch.setattr(rows_and_columns, "LARGE", 1)


def norm(x, w, b):
    return F.layer_norm(x, w.shape, w, b)


def norm_of_squares(x, w, b):
    """Another one for each row, by operations of their own."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w + b


def halves_on_host(function, *given):
    """What a function and its backward give, as kernels on the CPU, and the kernels of both."""
    kernels = []

    def compile(graph, inputs):
        lowered = lower(graph, inputs)
        program = KernelProgram(lowered, dialect=CudaOnHost())
        kernels.append([step for step in lowered.steps if isinstance(step, Kernel)])
        return program.run

    backend = bothways.backends.aot(fw_compiler=compile)
    result = bothways.compile(function, backend=backend)(*given)
    return [result, *torch.autograd.grad(result, given, torch.ones_like(result))], kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function, columns", [(norm, 512), (norm, 600), (norm_of_squares, 1024)])
def test_rows_and_columns_of_a_norm_are_reduced_at_once(function, columns, dtype):
    """What both read is read once; the last rows of a block count, and rows that are no multiple of its threads."""
    torch.manual_seed(0)
    x, w, b = (randn(*shape, dtype=dtype, grad=True) for shape in ((517, columns), (columns,), (columns,)))
    results, [_, backward] = halves_on_host(function, x, w, b)
    assert any(isinstance(kernel, RowsAndColumns) for kernel in backward)
    result = function(x, w, b)
    expected = [result, *torch.autograd.grad(result, [x, w, b], torch.ones_like(result))]
    for found, other in zip(results, expected, strict=True):
        found, other = found.double(), other.double()
        assert (found - other).norm() <= TOLERANCES[dtype] * other.norm()


@needs_nvrtc
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_of_rows_and_columns_compile(dtype):
    given = [randn(*shape, dtype=dtype, grad=True) for shape in ((512, 512), (512,), (512,))]
    _, [_, backward] = halves_on_host(norm, *given)
    assert [type(kernel) for kernel in backward] == [RowsAndColumns, Phase]
    for kernel in backward:
        text = spell_kernel(kernel, None)
        whole = CudaKernel("kernel", "", text.parameters, text.body, text.threads, text.together, text.aligned)
        source = CudaSource((whole,), {}, HELPERS, HEAD)
        assert len(found_nvrtc().compile(source.whole(str(whole)), "sm_90")) > 1000


def test_few_rows_are_reduced_apart_from_their_columns():
    given = [randn(*shape, grad=True) for shape in ((40, 512), (512,), (512,))]
    _, [_, backward] = halves_on_host(norm, *given)
    assert not any(isinstance(kernel, RowsAndColumns) for kernel in backward)
