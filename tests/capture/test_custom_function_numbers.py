"""Custom functions that are given a number which changes from call to call, and those that give a view, as functions do
that reverse gradients by a strength that follows a schedule: one program, and the step one graph."""

import numpy as np
import pytest
import torch
from agreeing import agree
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

BACKENDS = ["eager", "aot_eager", "native"]
everywhere = pytest.mark.parametrize("backend", BACKENDS)
NUMBERS = (0.5, 0.7, 1.3, -2.0, 3.1, 0.2, 4.4, 0.9, 1.9, 2.2)


class Reversed(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * ctx.alpha, None


class Scaled(Function):
    """Computes with its numbers in both bodies, and decides by one."""

    @staticmethod
    def forward(ctx, x, factor, times):
        ctx.save_for_backward(x)
        ctx.factor, ctx.times = factor, times
        return x * (factor * 2 + 1) if times > 0 else x - factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * (ctx.factor**2 if ctx.factor > 0 else 3) + ctx.times, None, None


class Halves(Function):
    """Gives views of one result, and of its argument."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        doubled = x * by
        return x.view(-1), doubled[:1], doubled[1:]

    @staticmethod
    def backward(ctx, whole, first, second):
        return whole.view(2, 3) * 5 + torch.cat([first * 3, second * ctx.by]), None


class Weights:
    def __init__(self):
        self.weight = torch.arange(6.0).reshape(2, 3).add(0.5).requires_grad_()

    def observe(self, function, call):
        self.weight = self.weight.detach().requires_grad_()
        try:
            result = function(self, torch.linspace(-1, 1, 6).reshape(2, 3), *call)
            tensors = result if isinstance(result, tuple) else (result,)
            if any(one.requires_grad for one in tensors):
                sum(one.sum() for one in tensors if one.requires_grad).backward()
        except RuntimeError as error:
            return {"raised": str(error)[:30]}
        return {"result": result, "gradient": self.weight.grad}


def given(owner, x, alpha):
    return (Reversed.apply(x * owner.weight, alpha) * 2).sin()


def a_step(owner, x, alpha):
    hidden = x * owner.weight
    (Reversed.apply(hidden, alpha).square().sum() + hidden.sum()).backward()
    return owner.weight.grad.clone()


def several(owner, x, alpha):
    inner = Scaled.apply(x * owner.weight, alpha, 2)
    return Scaled.apply(inner, alpha / 3, -1) + Scaled.apply(owner.weight, 1.5, alpha)


def without_gradients(owner, x, alpha):
    with torch.no_grad():
        return Scaled.apply(x * owner.weight, alpha, 2), Reversed.apply(x, alpha)


def the_view_leaves(owner, x, alpha):
    return Reversed.apply(owner.weight * x, alpha)


def view_and_base_leave(owner, x, alpha):
    hidden = x * owner.weight
    return hidden, Reversed.apply(hidden, alpha)[0]


def a_view_of_a_leaf_leaves(owner, x, alpha):
    return Reversed.apply(owner.weight, alpha)


def the_base_is_changed(owner, x, alpha):
    hidden = x * owner.weight
    reversed_ = Reversed.apply(hidden, alpha)
    with torch.no_grad():
        hidden.mul_(2)
    return reversed_.detach() * 1


def the_view_is_changed(owner, x, alpha):
    return Reversed.apply(x * owner.weight, alpha).add_(1)


def the_view_has_a_hook(owner, x, alpha):
    reversed_ = Reversed.apply(x * owner.weight, alpha)
    reversed_.register_hook(lambda grad: grad * 3)
    return reversed_.sin()


def in_a_checkpoint(owner, x, alpha):
    hidden = x * owner.weight
    inner = checkpoint(lambda y: Reversed.apply(y, alpha), hidden, use_reentrant=False)
    return inner.sin() + hidden.cos()


def views_of_each_other(owner, x, alpha):
    whole, first, second = Halves.apply(x * owner.weight, alpha)
    return (whole * 2).sum() + first.sin().sum() + second.cos().sum()


def differentiated_again(owner, x, alpha):
    (grad,) = torch.autograd.grad(Scaled.apply(owner.weight * x, alpha, 1).sum(), owner.weight, create_graph=True)
    return grad.square().sum()


PROGRAMS = [
    given, a_step, several, without_gradients, the_view_leaves, view_and_base_leave, a_view_of_a_leaf_leaves,
    the_base_is_changed, the_view_is_changed, the_view_has_a_hook, in_a_checkpoint, views_of_each_other,
    differentiated_again,
]  # fmt: skip


@everywhere
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_given_changes(program, backend):
    owner = Weights()
    calls = [(number,) for number in NUMBERS[:5]]
    agree(lambda owner, x, alpha: program(owner, x, alpha), owner.observe, *calls, backend=backend)


@everywhere
@pytest.mark.parametrize("program", [given, a_step, views_of_each_other])
@pytest.mark.parametrize("kind", [float, np.float64])
def test_there_is_one_program_for_all_numbers(program, kind, backend):
    owner = Weights()
    calls = [(kind(number),) for number in NUMBERS if number > 0]
    agree(lambda *args: program(*args), owner.observe, *calls, backend=backend, programs=2, fullgraph=True)


def test_the_number_of_the_forward_is_that_of_its_backward():
    def observe(function, call):
        weight = torch.ones(3, requires_grad=True)
        results = [function(weight, number) for number in call]
        for result in results:
            result.sum().backward()
        return {"gradient": weight.grad}

    def program(weight, alpha):
        return Reversed.apply(weight * 2, alpha) + 1

    agree(program, observe, (1.0, 2.0, 3.5), (4.0, 5.0), backend="eager")
