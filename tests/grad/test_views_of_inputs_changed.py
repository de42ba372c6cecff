"""An input that is changed through a view of another shape, then read: gradients are those of what it has become."""

import pytest
import torch
from agreeing import BACKENDS, agree
from torch import nn

torch.manual_seed(0)
LAYER = nn.Linear(3, 3)


def transposed(y):
    y.t().add_(1)
    return LAYER(y.detach())


def beside_the_view(y):
    y.t().add_(1)
    return LAYER(y.detach()) + y.t().sum()


def before_a_backward_inside(y):
    y.t().add_(1)
    result = LAYER(y.detach())
    (LAYER(y).sum() * 0.1).backward()
    return result


def flat(y):
    y.view(-1).add_(1)
    return y.view(-1).detach() * LAYER.weight.sum()


def a_row(y):
    y[0].add_(1)
    return LAYER(y.detach())


PROGRAMS = [transposed, beside_the_view, before_a_backward_inside, flat, a_row]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.every_backend
def test_the_gradient_reads_what_the_input_has_become(program, backend):
    def observe(function, rows):
        LAYER.zero_grad()
        y = torch.arange(3.0 * rows).reshape(rows, 3)
        result = function(y)
        (result * torch.arange(3.0 * rows).reshape(result.shape)).sum().backward()
        return {"result": result.detach(), "y": y, "gradient": LAYER.weight.grad.clone()}

    agree(program, observe, 3, 3, 2, 4, 5, backend=backend)
