"""Which programs call a library that works in memory of its own: recordings share that memory."""

import pytest
import torch
import torch.nn.functional as F
from cuda_on_host import CudaOnHost

import bothways
from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.steps import lower
from bothways.replay.workspaces import makes_products


def runs_of(function, *given):
    """The programs of a function and of its backward."""
    runs = []

    def compile(graph, inputs):
        program = KernelProgram(lower(graph, inputs), dialect=CudaOnHost())
        runs.append(program.run)
        return program.run

    bothways.compile(function, backend=bothways.backends.aot(fw_compiler=compile))(*given).sum().backward()
    return runs


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda x, y: F.linear(x, y).relu(), True),
        (lambda x, y: (x @ y).relu() @ y, True),
        (lambda x, y: torch.baddbmm(x[None], x[None], y[None]), True),
        (lambda x, y: (x * y).softmax(1), False),
        (lambda x, y: F.layer_norm(x, (24,)) + y, False),
        (lambda x, y: (x + y).cumsum(0), False),
    ],
)
def test_programs_that_multiply_matrices_are_known(function, expected):
    x, y = (torch.randn(24, 24, requires_grad=True) for _ in range(2))
    assert [makes_products(run) for run in runs_of(function, x, y)] == [expected, expected]


def test_what_is_no_program_is_known_to_multiply_nothing():
    assert not makes_products(print)
