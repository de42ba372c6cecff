"""Gradients of one result of a function by another one, where transforms and backwards have made them: as in eager."""

import itertools

import pytest
import torch
from agreeing import BACKENDS, agree
from torch.func import grad, grad_and_value, jvp, vjp

SMALL = {"kernels_for_small_graphs": True}


def loss(w, x):
    return (w * x).sin().sum()


def of_a_result(w, x):
    h = w * 2
    return h, grad(loss)(h, x)


def beside_what_follows(w, x):
    gradient, value = grad_and_value(loss)(w, x)
    product = gradient * w
    return gradient, value, product, product * 2


def pulled_back(w, x):
    result, pull = vjp(lambda weight: (weight * x).sin(), w)
    (gradient,) = pull(result)
    return result, gradient, (result * 2).sum()


def of_what_its_formula_reads(w, x):
    result, pull = vjp(lambda weight: (weight * x).exp(), w)
    return result, pull(torch.ones_like(result))[0]


def of_a_value_that_is_read(w, x):
    return grad_and_value(lambda weight: (weight * x).logsumexp(0))(w)


def pushed_forward(w, x):
    result, tangent = jvp(lambda weight: (weight * x).sin(), (w,), (x,))
    return result, tangent, result * tangent


def by_autograd(w, x):
    h = w * 2
    value = loss(h, x)
    (gradient,) = torch.autograd.grad(value, h, create_graph=True)
    return h, value, gradient, gradient.sum()


def of_a_gradient(w, x):
    h = w * x
    (gradient,) = torch.autograd.grad(h.tanh().sum(), h, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), w, create_graph=True)
    return gradient, second


PROGRAMS = [
    of_a_result, beside_what_follows, pulled_back, of_what_its_formula_reads, of_a_value_that_is_read, pushed_forward,
    by_autograd, of_a_gradient,
]  # fmt: skip


def gradient_of(result, by):
    if not (result.requires_grad and by.requires_grad):
        return "no gradients"
    (gradient,) = torch.autograd.grad(result.sum(), by, allow_unused=True, retain_graph=True)
    return gradient


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_results_by_others(program, backend):
    def observe(function, _):
        w, x = torch.linspace(0.5, 1.5, 3, requires_grad=True), torch.linspace(1, 2, 3)
        results = function(w, x)
        return {
            "results": [result.detach() for result in results],
            "gradients": [gradient_of(one, other) for one, other in itertools.permutations((*results, w), 2)],
        }

    agree(program, observe, 1, 2, backend=backend, within=SMALL, fullgraph=True)
