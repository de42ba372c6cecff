"""A custom function that keeps a graph of its own from its forward, and goes through that in its backward."""

import pytest
import torch
from agreeing import BACKENDS, agree


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 20 * x


class Kept(torch.autograd.Function):
    """Its context has the graph, as functions have it that were written before checkpointing."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = Inner.apply(ctx.x).sum() * ctx.x
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return torch.autograd.grad(ctx.y, ctx.x, gradient, retain_graph=True)[0]


class Accumulated(Kept):
    @staticmethod
    def backward(ctx, gradient):
        ctx.y.backward(gradient, retain_graph=True)
        return ctx.x.grad


def in_a_step(function, x):
    loss = function.apply(x).sum()
    loss.backward()
    return loss


def seen(program, call):
    function, values = call
    x = torch.tensor(values).requires_grad_()
    result = program(function, x)
    if result.grad_fn is not None and x.grad is None:
        result.sum().backward()
    return {"result": result.detach(), "gradient": x.grad}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [Kept, Accumulated])
@pytest.mark.parametrize("program", [lambda function, x: function.apply(x) + Inner.apply(x), in_a_step])
def test_the_backward_goes_through_the_graph_of_the_forward(program, function, backend):
    agree(program, seen, *[(function, values) for values in ([1.0, 2.0], [1.0, 2.0], [3.0, 4.0, 5.0])], backend=backend)
