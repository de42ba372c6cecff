"""What fails before a graph calls code of the user's that has effects raises where the handler is, with those not made;
what fails after it leaves the function, and they are made once."""

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways

LOG = []
LAYER = torch.nn.Linear(4, 4).double()


class Doubled(torch.autograd.Function):
    """Changes what it is given."""

    @staticmethod
    def forward(ctx, t):
        ctx.mark_dirty(t)
        LOG.append("forward")
        return t.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        LOG.append("forward")
        return t * 2

    @staticmethod
    def backward(ctx, grad):
        LOG.append("backward")
        return grad * 2


def packed(tensor):
    LOG.append(tuple(tensor.shape))
    return tensor


def marked(x):
    try:
        h = LAYER(x)
    except RuntimeError:
        LOG.append("refused")
        h = x
    return Doubled.apply(h * 1)


def changed(x):
    with torch.no_grad():
        x.add_(1)
    try:
        h = LAYER(x)
    except RuntimeError:
        h = x + 1
    return Counted.apply(h)


def drawn(x):
    first = torch.rand(4)
    try:
        h = LAYER(x)
    except RuntimeError:
        h = x + torch.rand(4)
    return Counted.apply(h + first)


def hooked(x):
    try:
        h = LAYER(x)
    except RuntimeError:
        h = x + 1
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        return h.sin()


def replaced(x):
    y = torch.ones(2)
    try:
        h = LAYER(x)
    except RuntimeError:
        h = x + 1
    x.data = x.data * 2
    return h, y


def unhandled(x):
    LOG.append("before")
    h = LAYER(x)
    return Counted.apply(h)


def looked_up(x):
    table = torch.arange(12.0).view(3, 4)
    try:
        h = torch.nn.functional.embedding(x.detach().long().abs().sum().view(1), table)
    except IndexError:
        LOG.append("out of range")
        h = table
    return Counted.apply(h * x)


def refused_after(x):
    h = Counted.apply(x)
    try:
        return LAYER(h)
    except RuntimeError:
        return h + 1


def observe(function, start):
    LOG.clear()
    torch.manual_seed(0)
    x = torch.full((2, 4), start, requires_grad=True)
    try:
        result = function(x)
        last = result[0] if isinstance(result, tuple) else result
        last.sum().backward()
    except RuntimeError as error:
        result = str(error)
    return {"result": result, "log": list(LOG), "x": x.detach(), "grad": x.grad, "random": torch.rand(1)}


PROGRAMS = [marked, changed, drawn, hooked, replaced, unhandled, looked_up, refused_after]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_fails_beside_effects_raises_at_its_line(program, kernels, backend):
    with bothways.config.patch(kernels_for_small_graphs=kernels):
        agree(program, observe, 1.0, 0.0, 1.0, 3.0, 0.0, backend=backend)
