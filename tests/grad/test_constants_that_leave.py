"""Tensors that a program makes of numbers are new in each call: who gets one may change it."""

import pytest
import torch
from agreeing import BACKENDS, agree

KERNELS = {"kernels_for_small_graphs": True}


def returned(x):
    return torch.tensor(1.5), x * torch.tensor(1.5)


def a_part(x):
    whole = torch.tensor([[1.5, 2.0], [3.0, 4.0]])
    return whole, whole[1:], x + 1


def as_it_is(x):
    return torch.tensor([1, 2]).long(), torch.tensor([1.5, 2.0]).float(), torch.tensor([[1.5, 2.0]]).flatten(), x + 1


def several(x):
    return *torch.tensor([[1.0, 2.0], [3.0, 4.0]]).unbind(0), x.new_tensor([1.0]), x + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [returned, a_part, as_it_is, several])
def test_what_the_caller_does_to_a_constant_is_not_seen_in_the_next_call(program, grad, backend):
    def observe(function, call):
        results = function(torch.ones(3, 2).requires_grad_(grad))
        seen = [result.detach().clone() for result in results]
        with torch.no_grad():
            for result in results:
                result.zero_()
        return {"results": seen}

    agree(program, observe, 1, 2, 3, backend=backend, programs=1, within=KERNELS, fullgraph=True)


def changed_as_data(x):
    limit = torch.tensor(1.5)
    below = x < limit
    limit.data.div_(2)
    return below, limit


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_constant_that_the_program_itself_changes(backend):
    def observe(function, call):
        return {"result": function(torch.linspace(0, 2, 20).requires_grad_())}

    agree(changed_as_data, observe, 1, 2, 3, backend=backend, programs=1, within=KERNELS, fullgraph=True)


class GivesConstant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.tensor([5.0, 6.0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_is_a_constant(backend):
    def observe(function, call):
        x = torch.ones(2, requires_grad=True)
        function(x).sum().backward()
        seen = x.grad.clone()
        x.grad.zero_()
        return {"gradient": seen}

    agree(GivesConstant.apply, observe, 1, 2, 3, backend=backend, within=KERNELS)
