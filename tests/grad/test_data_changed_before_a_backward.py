"""What a function changes by way of ``.data``, unseen by autograd, after it has used it: what was saved stays saved."""

import pytest
import torch
from agreeing import BACKENDS, agree

ELEMENTS = 60_000  # so many that computing something again costs less than saving it


def of_a_result(x):
    y = x.frac()
    z = torch.addcmul(y, y, y.floor(), value=0.5)
    y.data.mul_(3)
    return z, y


def of_an_input(x):
    z = torch.addcmul(x, x, x.floor(), value=0.5)
    x.data.mul_(3)
    return z, x


def of_a_view(x):
    y = x.frac()
    z = torch.addcmul(y, y, y.floor(), value=0.5)
    y[: len(y) // 2].data.fill_(7.5)
    return z, y


def by_an_index(x):
    y = x.frac()
    z = torch.addcmul(y, y, y.floor(), value=0.5)
    y.data.index_put_((torch.tensor([0, 1, 0]),), x[:3], accumulate=True)
    return z, y


def of_other_data(x):
    z = torch.addcmul(x, x, x.floor(), value=0.5)
    x.data = x.detach() * 3
    return z, x.sin()


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [of_a_result, of_an_input, of_a_view, by_an_index, of_other_data])
def test_a_backward_reads_what_eager_reads(program, backend):
    def observe(function, end):
        x = torch.linspace(-end, end, ELEMENTS).requires_grad_()
        result, changed = function(x)
        return {"gradient": torch.autograd.grad(result.sum(), x), "changed": changed.detach().clone()}

    agree(program, observe, 3, 4, backend=backend, within={"kernels_for_small_graphs": True})
