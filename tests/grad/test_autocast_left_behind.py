"""What autocast keeps of casts is what eager keeps: after a compiled call, and where a graph is cut inside of it."""

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways


def bfloat16():
    return torch.autocast("cpu", torch.bfloat16)


def depth():
    """How many autocasts are open, as PyTorch counts them."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_inside_leaves_plain_training_as_it_was(backend):
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)

    def program(x):
        with bfloat16():
            loss = layer(x).float().sum()
            loss.backward()
        return loss

    compiled = bothways.compile(program, backend=backend)
    for _ in range(3):
        compiled(x)
        assert depth() == 0
    optimizer, losses = torch.optim.SGD(layer.parameters(), lr=0.01), []
    for _ in range(3):
        with bfloat16():
            loss = layer(x).float().pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(set(losses)) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_that_is_changed_behind_a_cut_is_read_as_it_was_cast(backend):
    layers = []

    def program(x):
        with bfloat16():
            hidden = layers[-1](x)
            hidden.register_hook(lambda gradient: None)
            with torch.no_grad():
                layers[-1].weight.mul_(0.5)
            return hidden.float().sum() + layers[-1](x).float().sum()

    def reset():
        torch.manual_seed(0)
        layers.append(torch.nn.Linear(4, 4))

    def observe(function, _):
        result = function(torch.ones(2, 4))
        result.backward()
        gradients = [parameter.grad.clone() for parameter in layers[-1].parameters()]
        layers[-1].zero_grad()
        return {"result": result, "weight": layers[-1].weight.detach().clone(), "gradients": gradients}

    agree(program, observe, 1, 2, 3, backend=backend, reset=reset, tol=1e-2)
