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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", [lambda c, window: c.copy_(window.roll(1, 0)), lambda c, window: window.mul_(2)])
@pytest.mark.parametrize("gives", [lambda window: window.t(), lambda window: window, lambda window: window + 1])
def test_a_view_by_strides_of_an_argument_in_larger_memory(gives, write, backend):
    """What it has become is found out where the function has ended: it does not show in memory that is made anew."""

    def program(c, e):
        window = c.as_strided(c.shape, c.stride())
        write(c, window)
        return gives(window), e * 2

    def observe(function, _):
        c, e = torch.arange(18.0).reshape(6, 3)[1:], torch.ones(3, requires_grad=True)
        view, doubled = function(c, e)
        gradient = torch.autograd.grad(doubled.sum(), e)
        c.add_(1)
        return {"view": view, "strides": view.stride(), "c": c, "gradient": gradient}

    agree(program, observe, 1, 2, backend=backend, within={"kernels_for_small_graphs": True}, fullgraph=True)
