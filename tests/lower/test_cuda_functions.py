"""Functions that have spellings of their own for GPUs, where they end. Their kernels run on the CPU here."""

import math

import pytest
import torch
from cuda_on_host import CudaOnHost
from test_cuda_kernels import as_on_gpu, cases  # noqa: F401  (a fixture)

from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.steps import lower

pytestmark = pytest.mark.usefixtures("as_on_gpu")

INF = math.inf
ENDS = [0.0, -0.0, 1e-30, -1e-4, 0.24, 0.26, 0.59, -0.61, 3, -9.2, 17, -30, 88, -87, -89, 200, -200, INF, -INF]
FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "largest": lambda x: x.reshape(-1, 4).amax(1),
    "shares": lambda x: torch.softmax(x.reshape(-1, 4), 1),
    "logarithms of shares": lambda x: torch.log_softmax(x.reshape(-1, 4), 1),
}
NEAR = {
    torch.float32: {"rtol": 1e-6, "atol": 1e-37},
    torch.bfloat16: {"rtol": 2**-7, "atol": 0},
    torch.float16: {"rtol": 2**-10, "atol": 6e-8},
}


def ends(dtype):
    return torch.tensor([*ENDS, math.nan, *ENDS, *ENDS[:5]]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_where_they_end(name, dtype):
    x = ends(dtype)
    [case] = cases(FUNCTIONS[name], x)
    [found] = KernelProgram(lower(case.graph, [x]), dialect=CudaOnHost()).run(x)
    # On a CPU, ATen rounds parts of what on a GPU it computes in single precision.
    expected = FUNCTIONS[name](x.float()).to(dtype)
    torch.testing.assert_close(found, expected, equal_nan=True, **NEAR[dtype])
    if name in ("sigmoid", "tanh"):
        assert torch.equal(torch.signbit(found[~x.isnan()]), torch.signbit(expected[~x.isnan()])), "of zeros, too"
