"""Writes that functionalization makes a scatter by strides of, to tensors with gaps that need gradients."""

import pytest
import torch
from agreeing import BACKENDS, agree

pytestmark = pytest.mark.every_backend


def diagonal(a):
    a.data.fill_diagonal_(2)


def some(a):
    a.as_strided((2, 2), (1, 3)).mul_(2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", [diagonal, some])
@pytest.mark.parametrize("kept", [False, True])
def test_a_parameter_with_gaps_is_written_through_strides(write, kept, backend):
    def program(a, b):
        y = (b * 2).sum()
        with torch.no_grad():
            write(a)
        return y + a.sum() if kept else y

    def observe(function, _):
        a, b = torch.ones(3, 5).t().requires_grad_(), torch.ones(3, requires_grad=True)
        y = function(a, b)
        return {"y": y, "a": a, "version": a._version, "gradients": torch.autograd.grad(y, [a, b], allow_unused=True)}

    agree(program, observe, 1, 2, backend=backend, within={"kernels_for_small_graphs": True}, fullgraph=True)
