"""Derivatives for all sizes: hooks, custom functions, gradients of every layout, second derivatives."""

import pytest
import torch
from sizing import BACKENDS, agree, agree_once, batches

import bothways

everywhere = pytest.mark.parametrize("backend", BACKENDS)


@everywhere
def test_a_result_that_others_are_computed_from(backend):
    def program(x):
        hidden = x * 2 + x.shape[0]
        return hidden, (hidden * hidden).view(x.shape[0] * 2, 2).sum(), hidden[1:]

    agree(program, batches(None, 4), backend)


@everywhere
def test_hooks_see_the_gradients_of_each_call(backend):
    seen = []

    def program(x):
        hidden = x * 2
        hidden.register_hook(lambda gradient: seen.append(gradient.shape[0]) or gradient * 3)
        return (hidden.exp() * x.shape[0]).sum()

    agree(program, batches(None, 4), backend)
    assert seen == [size for size in (2, 3, 5, 8, 64) for _ in range(2)]


@everywhere
def test_kept_gradients(backend):
    def program(x):
        hidden = x * 2
        hidden.retain_grad()
        return hidden.exp().sum() / x.shape[0], hidden

    compiled = bothways.compile(program, backend=backend)
    for (x,) in batches(None, 4):
        loss, hidden = compiled(x)
        loss.backward()
        torch.testing.assert_close(hidden.grad, hidden.exp().detach() / len(x))
    assert len(bothways.history(compiled)) == 2


class Flattened(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.view(-1) * x.shape[0]

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient.view(x.shape) * x.shape[0]


@everywhere
def test_custom_functions(backend):
    agree(lambda x: Flattened.apply(x).sum() + x.mean(), batches(None, 4), backend)


LAYOUTS = {
    "dense": lambda n: torch.randn(n, 4),
    "expanded": lambda n: torch.ones(()).expand(n, 4),
    "transposed": lambda n: torch.randn(4, n).t(),
    "every other row": lambda n: torch.randn(n * 2, 4)[::2],
    "every third column": lambda n: torch.randn(n, 12)[:, ::3],
}


@everywhere
def test_gradients_of_every_layout(backend):
    def program(x):
        return x.exp() * x.shape[0]

    compiled = bothways.compile(program, backend=backend)
    for size in (2, 3, 5, 8):
        for layout in LAYOUTS.values():
            x = torch.randn(size, 4, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            gradient = layout(size)
            program(x).backward(gradient)
            compiled(y).backward(gradient)
            torch.testing.assert_close(y.grad, x.grad)
    assert len(bothways.history(compiled)) == 2


@everywhere
def test_second_derivatives(backend):
    def program(x):
        return (x**3 * x.shape[0]).sum(1)

    compiled = bothways.compile(program, backend=backend)
    for size in (2, 3, 5, 8):
        x = torch.randn(size, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for function, tensor in ((program, x), (compiled, y)):
            (gradient,) = torch.autograd.grad(function(tensor).sum(), tensor, create_graph=True)
            (gradient * gradient).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


@everywhere
@pytest.mark.parametrize("hooked", [True, False])
def test_second_derivatives_of_a_number_that_no_shape_shows(backend, hooked):
    def program(x, times):
        return (x.sin() * x * times).exp().sum()

    def second_derivative(function, times):
        x = torch.linspace(0, 1, 7, dtype=torch.float64).requires_grad_()
        y = x * 1
        if hooked:  # which keeps a graph from having a twin
            y.register_hook(lambda gradient: None)
        (slope,) = torch.autograd.grad(function(y, times), x, create_graph=True)
        return torch.autograd.grad(slope.sum(), x)[0]

    compiled = bothways.compile(program, backend=backend, dynamic=True)
    for times in (3, 4, 5, 3):
        torch.testing.assert_close(second_derivative(compiled, times), second_derivative(program, times))
    assert len(bothways.history(compiled)) == 1


@everywhere
def test_backwards_of_calls_with_other_sizes_in_between(backend):
    def program(x):
        return (x.softmax(0) * x.shape[0]).tanh()

    compiled = bothways.compile(program, backend=backend)
    pairs = []
    for (x,) in batches(None, 4, sizes=(3, 5, 2, 7, 4)):
        y = x.detach().clone().requires_grad_()
        pairs.append((x, y, program(x).sum(), compiled(y).sum()))
    for x, y, expected, found in reversed(pairs):
        expected.backward()
        found.backward()
        torch.testing.assert_close(y.grad, x.grad)


@everywhere
def test_a_forward_that_differs_by_what_is_known(backend):
    """With two rows, ``x[1:]`` has one, which makes operations go away when the graph is traced again."""

    def program(x):
        n = x.shape[0]
        y = torch.nn.functional.pad(x.softmax(-1), (1, 1))[:, 1:-1]
        y = y.masked_fill(y > 1, 0.5)
        return torch.cat([y.sigmoid() * y, y])[:n][1:]

    compiled = bothways.compile(program, backend=backend)
    for size in ((40, 30), (2, 3), (5, 6), (2, 7)):
        x = torch.randn(*size, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        program(x).sum().backward()
        compiled(y).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


@everywhere
def test_views_that_are_returned(backend):
    agree(lambda x: (x[1:], x.view(-1), x.t(), x.unsqueeze(1), x * 2), batches(None, 4), backend)
    compiled = bothways.compile(lambda x: x.view(2, -1), backend=backend)
    for size in (2, 3, 4):
        x = torch.randn(size, 4)
        compiled(x).zero_()
        assert not x.any(), "the view of this call's own memory"


@everywhere
def test_without_gradients(backend):
    def program(x):
        with torch.no_grad():
            scale = x * x.shape[0]
        return x * scale

    agree(program, batches(None, 4), backend)
    compiled = bothways.compile(program, backend=backend)
    with torch.no_grad():
        for args in batches(None, 4, grad=False):
            agree_once(program, compiled, args)
    assert len(bothways.history(compiled)) == 2


@everywhere
def test_dropout_draws_the_numbers_of_each_size(backend):
    compiled = bothways.compile(lambda x: torch.nn.functional.dropout(x, 0.5) * 2, backend=backend)
    for (x,) in batches(None, 64):
        found = compiled(x)
        found.sum().backward()
        assert torch.equal(x.grad == 0, found == 0)
        assert torch.equal(found[found != 0], (x * 4)[found != 0])
