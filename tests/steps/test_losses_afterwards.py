"""What a caller may do with a loss whose backward was part of the program, and with inputs that asked for gradients."""

import pytest
import torch
from agreeing import BACKENDS, agree

LAYER = torch.nn.Linear(4, 3, dtype=torch.float64)


def observe(function, call):
    LAYER.zero_grad()
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)
    seen = call(function(x), x)
    return {"seen": seen, "x": x.grad, "gradients": [parameter.grad for parameter in LAYER.parameters()]}


def changed(loss, x):
    loss += 1
    loss /= 2
    return loss.detach(), loss._version, loss.requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_can_be_changed_in_place(backend):
    def step(x):
        loss = LAYER(x).pow(2).mean()
        loss.backward()
        return loss

    agree(step, observe, changed, changed, backend=backend, fullgraph=True)


def differentiated(other, x):
    other.backward()
    return other.detach()


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_result_leads_to_an_input_that_asks_for_a_gradient_inside(backend):
    def step(x):
        x.requires_grad_()
        loss = LAYER(x).sum()
        other = LAYER(x).exp().sum()
        loss.backward()
        return other

    agree(step, observe, differentiated, differentiated, backend=backend)
