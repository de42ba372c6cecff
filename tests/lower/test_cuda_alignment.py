"""Kernels on GPUs where memory begins amid a vector, and kernels whose threads take several. They run on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from cuda_on_host import CudaOnHost
from native_checking import cases_of
from test_cuda_kernels import TOLERANCES, as_on_gpu, randn  # noqa: F401  (a fixture)

from bothways.lower.dialects.cuda import emit_pointwise
from bothways.lower.dialects.cuda.arranging import row_geometry
from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.steps import lower
from bothways.lower.schedule.tree import Kernel

pytestmark = pytest.mark.usefixtures("as_on_gpu")
PROGRAMS = {
    "pointwise": lambda x, y: (x * y + 1).exp(),
    "rows": lambda x, y: (x + y).softmax(-1),
    "a norm": lambda x, y: F.layer_norm(x, (256,), y[0], y[1]),
    "columns": lambda x, y: (x * y).sum(0),
}


def apart(x, elements):
    """The same numbers, so many elements behind the beginning of a vector."""
    flat = x.new_empty(x.numel() + elements)
    flat[elements:] = x.flatten()
    return flat[elements:].view(x.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_right_wherever_memory_begins(name, dtype):
    """One program, for memory that vectors can be read from, for memory that they cannot, and for one of each."""
    x, y = randn(40, 256, dtype=dtype), randn(40, 256, dtype=dtype)
    [case] = cases_of("case", lambda *values: [PROGRAMS[name](*values)], [x, y], grad=False)
    program = KernelProgram(lower(case.graph, [x, y]), dialect=CudaOnHost())
    expected = PROGRAMS[name](x, y).double()
    for given in ((x, y), (apart(x, 1), apart(y, 3)), (x, apart(y, 1)), (apart(x, 2), y)):
        [found] = program.run(*given)
        assert (found.double() - expected).norm() <= TOLERANCES[dtype] * expected.norm()


def test_two_warps_take_a_row_of_which_much_is_kept():
    """A softmax's backward keeps its result and the gradient: of rows of 1024 one warp has too few registers."""
    given = randn(8192, 1024, dtype=torch.bfloat16, grad=True)
    [*_, case] = cases_of("case", lambda x: [x.softmax(1)], [given], grad=True)
    steps = lower(case.graph, [tensor.detach() for tensor in case.given]).steps
    assert [row_geometry(step).team for step in steps if isinstance(step, Kernel)] == [64]


def test_threads_take_several_vectors_where_something_is_the_same_for_all(monkeypatch):
    """What is computed of a single number is computed once for all of them."""
    monkeypatch.setattr(emit_pointwise, "MANY_BLOCKS", 1)
    monkeypatch.setattr(emit_pointwise, "TURNS", 3)
    x, scale = randn(70, 1000), randn(1)
    function = lambda x, scale: x * (1 / scale) + x  # noqa: E731
    [case] = cases_of("case", lambda *values: [function(*values)], [x, scale], grad=False)
    program = KernelProgram(lower(case.graph, [x, scale]), dialect=CudaOnHost())
    [found] = program.run(x, scale)
    torch.testing.assert_close(found, function(x, scale))
