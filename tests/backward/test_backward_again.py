"""Captured backwards whose gradients are differentiated in turn (``create_graph``), to any order."""

import warnings

import pytest
import torch
from backward_counting import Captured
from torch.autograd import Function

import bothways
from bothways.record.backwards import backwards
from bothways.testing import difference

COMPILERS = ["eager", "aot_eager", "native"]


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


class Doubling(Function):
    """Its gradient is not the derivative: whoever goes past it is found out."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


compiled_layer = bothways.compile(lambda x, w: torch.tanh(x @ w).sin(), backend="aot_eager")


def formulas(x, w):
    return (x.sin() * w.exp()).sum() + torch.tanh(x @ w).pow(3).mean()


def custom(x, w):
    return (Cube.apply(x) * w).sum()


def hooked(x, w):
    y = x * w
    y.register_hook(lambda grad: grad * grad * 2)
    return y.sin().sum()


def hooked_with_a_custom_function(x, w):
    y = compiled_layer(x, w)
    y.register_hook(lambda grad: Doubling.apply(grad * x))
    return y.sin().sum()


def retained(x, w):
    y = x * w
    y.retain_grad()
    return y.sin().sum()


def compiled(x, w):
    return (compiled_layer(x, w) * x).sum()


def changed_through_a_view(x, w):
    y = x * 1
    y[1:].mul_(w[1:])
    return y.pow(2).sum()


PROGRAMS = [
    formulas, custom, hooked, hooked_with_a_custom_function, retained, compiled, changed_through_a_view
]  # fmt: skip


def leaves():
    """In double precision: third derivatives of these come to 200,000 beside 0.7, where single precision rounds by more
    than a mistake would make."""
    torch.manual_seed(0)
    return torch.randn(3, 3).double().requires_grad_(), torch.randn(3, 3).double().requires_grad_()


def penalty(program):
    x, w = leaves()
    first = torch.autograd.grad(program(x, w), (x, w), create_graph=True)
    sum((grad * grad).sum() for grad in first).backward()
    return [grad.detach() for grad in first], [grad.requires_grad for grad in first], x.grad, w.grad


def accumulated(program):
    x, w = leaves()
    for _ in range(2):
        program(x, w).backward(create_graph=True)
    first, has_history = x.grad.detach().clone(), x.grad.requires_grad
    (second,) = torch.autograd.grad((x.grad * x.grad).sum(), w)
    x.grad = w.grad = None  # which lead to each other
    return first, has_history, second


def third(program):
    x, w = leaves()
    (first,) = torch.autograd.grad(program(x, w), x, create_graph=True)
    (second,) = torch.autograd.grad((first * x).sum(), x, create_graph=True)
    return first.detach(), second.detach(), torch.autograd.grad((second * second).sum(), w)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("use", [penalty, accumulated, third], ids=lambda use: use.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_of_captured_backwards_are_differentiated(program, use, backend):
    expected = use(program)
    compiler = Captured(backend)
    counts = []
    with bothways.autograd.capture(compiler):
        for _ in range(4):
            found = use(program)
            differs = difference(expected, found, tol=1e-9)
            assert differs is None, differs
            counts.append(len(compiler.modules))
    # One for each structure, however often; there are others once the program knows of second derivatives.
    assert counts[2] == counts[3]
    assert not [reason for record in backwards for reason in record.plain]


def test_hooks_see_gradients_with_a_history():
    def run():
        x, w = leaves()
        y, seen = x * w, []
        y.register_hook(lambda grad: seen.append((grad.requires_grad, torch.is_grad_enabled())))
        x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.requires_grad))
        for again in (False, True, False):
            y.sin().sum().backward(create_graph=again, retain_graph=True)
        x.grad = None
        return seen

    with warnings.catch_warnings(record=True) as plain:
        expected = run()
    del plain
    with bothways.autograd.capture(Captured("eager")), pytest.warns(UserWarning, match="create a reference cycle"):
        assert run() == expected


def test_both_ways_of_one_structure_are_no_recompilation():
    compiler = Captured("eager")
    with bothways.config.patch(error_on_recompile=True), bothways.autograd.capture(compiler):
        for again in (False, True, False, True):
            x, _ = leaves()
            (grad,) = torch.autograd.grad(x.sin().sum(), x, create_graph=again)
            assert grad.requires_grad == again
    assert len(compiler.modules) == 2


def test_an_exception_in_a_hook_is_the_users():
    x, w = leaves()
    y = x * w
    y.register_hook(lambda grad: 1 / 0)
    loss = y.sin().sum()
    with bothways.autograd.capture(Captured("eager")), pytest.raises(ZeroDivisionError):
        torch.autograd.grad(loss, x, create_graph=True)
    assert x.grad is None and torch.is_grad_enabled()
