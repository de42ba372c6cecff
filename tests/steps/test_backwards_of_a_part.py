"""``torch.autograd.grad`` goes through a part of the history, and lets go of that part alone."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch import nn

import bothways

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


def learned_rate():
    """Inner steps of the first order: what is behind the parameters of one is not gone through by the next."""
    model, rate = nn.Linear(6, 3), nn.Parameter(torch.tensor(0.1))
    module = nn.Module()
    module.model, module.rate = model, rate

    def step(x, y):
        module.zero_grad()
        weights = [model.weight, model.bias]
        for _ in range(3):
            loss = F.cross_entropy(F.linear(x, *weights).tanh(), y)
            slopes = torch.autograd.grad(loss, weights)
            weights = [weight - rate * slope for weight, slope in zip(weights, slopes, strict=True)]
        loss = F.cross_entropy(F.linear(x, *weights).tanh(), y)
        loss.backward()
        return loss.item()

    return step, {"module": module}


def cut_in_two():
    """The gradient of what is computed in the middle, and from there on by itself."""
    first, second = nn.Linear(6, 8), nn.Linear(8, 3)
    module = nn.ModuleList([first, second])

    def step(x, y):
        module.zero_grad()
        hidden = first(x).tanh()
        loss = F.cross_entropy(second(hidden), y)
        (slope,) = torch.autograd.grad(loss, [hidden])
        hidden.backward(slope.clamp(-0.01, 0.01))
        return loss.detach()

    return step, {"module": module}


def two_ways_around():
    """An input that lies behind another one is come to through that one."""
    module = nn.Linear(6, 3)

    def step(x, y):
        module.zero_grad()
        out = module(x)
        scaled = out.exp()
        loss = scaled.square().sum()
        ones = torch.autograd.grad(loss, [scaled, out], retain_graph=False)
        again = torch.autograd.grad(out.sin().sum(), module.parameters())
        return [*ones, *again]

    return step, {"module": module}


# One program without gradients, and one with some to forget.
@pytest.mark.parametrize(("make", "programs"), [(learned_rate, 2), (cut_in_two, 2), (two_ways_around, 1)])
def test_what_a_backward_does_not_go_through_is_kept(make, programs, backend):
    agree(make, batches(4), backend, programs=programs)


def test_what_is_handed_out_can_be_gone_through(backend):
    weight = torch.ones(3, requires_grad=True)

    def step(x):
        hidden = (x * weight).tanh()
        loss = hidden.square().sum()
        (slope,) = torch.autograd.grad(loss, [hidden])
        return hidden, loss, slope

    compiled = bothways.compile(step, backend=backend, fullgraph=True)
    seen = []
    for function in (step, compiled, compiled):
        hidden, loss, slope = function(torch.arange(3.0))
        hidden.backward(slope)
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        seen.append(weight.grad)
        weight.grad = None
    torch.testing.assert_close(seen[1], seen[0])
    torch.testing.assert_close(seen[2], seen[0])
    assert len(bothways.history(compiled)) == 1


def test_what_it_does_go_through_is_gone(backend):
    def make():
        module = nn.Linear(6, 3)

        def step(x, y):
            hidden = module(x).tanh()
            loss = F.cross_entropy(hidden, y)
            torch.autograd.grad(loss, [hidden])
            try:
                loss.backward()
            except RuntimeError as error:
                return str(error)
            return "no error"

        return step, {"module": module}

    agree(make, batches(2), backend, fullgraph=False)
