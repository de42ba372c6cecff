"""Tensors that ask for their own gradient, made in a function that runs a backward itself, leave it as they are."""

import pytest
import torch
from agreeing import BACKENDS, agree
from torch import nn


def made_behind_a_backward(x, y):
    inner = y.detach().clone().requires_grad_()
    (inner * 2).sum().backward()
    return x.detach().clone().requires_grad_(), inner


def made_before_it(x, y):
    inner, made = y.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
    gradient, = torch.autograd.grad((inner * 2).sum(), inner)
    return made, inner, gradient


def views_of_it(x, y):
    inner = y.detach().clone().requires_grad_()
    (inner * 2).sum().backward()
    return inner.view(-1), inner[0]


def changed_without_gradients(x, y):
    inner = y.detach().clone().requires_grad_()
    (inner**2).sum().backward()
    with torch.no_grad():
        inner -= 0.1 * inner.grad
    return (inner,)


def a_gradient_that_leads_to_it(x, y):
    inner = y.detach().clone().requires_grad_()
    gradient, = torch.autograd.grad((inner**3).sum(), inner, create_graph=True)
    return gradient + 1, inner.detach()


def with_what_it_was_computed_of(x, y):
    inner = y.detach().clone().requires_grad_()
    double = inner * 2
    gradient, = torch.autograd.grad((double**3).sum(), inner, create_graph=True)
    return gradient.sum(), double


def an_argument_that_asks_from_here_on(x, y):
    y.requires_grad_()
    gradient, = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    return gradient + 1, y


def told(function, call):
    x, y = torch.arange(6.0).view(2, 3), torch.ones(2, 3)
    results = function(x, y)
    kinds = [(result.requires_grad, result.is_leaf) for result in results]
    gradients = []
    for result in results:
        if result.requires_grad:
            result.sum().backward(retain_graph=True)
            gradients.append(result.grad if result.is_leaf else None)
    shown = [result.detach() for result in results]
    return {"results": shown, "kinds": kinds, "gradients": [*gradients, y.grad if y.is_leaf else None]}


PROGRAMS = [made_behind_a_backward, made_before_it, views_of_it, changed_without_gradients,
            a_gradient_that_leads_to_it, with_what_it_was_computed_of, an_argument_that_asks_from_here_on]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_they_ask_for_their_gradient_outside(program, backend):
    agree(program, told, 1, 2, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_to_change_one_in_place_is_refused(backend):
    def program(x, y):
        inner = y.detach().clone().requires_grad_()
        (inner * 2).sum().backward()
        try:
            x.detach().clone().requires_grad_().add_(1)
        except RuntimeError as error:
            return str(error), inner.grad
        return "changed", inner.grad

    agree(program, lambda f, call: {"result": f(torch.ones(2), torch.ones(2))}, 1, 2, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_for_what_is_saved_after_a_backward(backend):
    def program(x):
        inner = x.detach().clone().requires_grad_()
        (inner**3).sum().backward()
        with torch.autograd.graph.save_on_cpu():
            result = x.sin()
        return result, inner.grad

    def observe(function, size):
        x = torch.ones(size, 3, requires_grad=True)
        result, gradient = function(x)
        result.sum().backward()
        return {"result": result, "gradients": (gradient, x.grad)}

    agree(program, observe, 2, 2, 3, 4, backend=backend)


def test_gradients_that_are_clipped_by_value_where_there_are_none():
    layer = nn.Linear(2, 2)

    def program(x):
        try:
            nn.utils.clip_grad_value_(layer.parameters(), 0.1)
        except RuntimeError as error:
            return str(error)
        return "clipped"

    def observe(function, has_gradients):
        layer.zero_grad()
        if has_gradients:
            layer(torch.ones(2)).sum().backward()
        return {"result": function(torch.ones(2)), "gradient": layer.weight.grad}

    agree(program, observe, False, False, True, True)
