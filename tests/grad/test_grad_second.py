"""Second derivatives run every product as often as eager does, for all sizes."""

import pytest
import torch
import torch.nn.functional as F
from second_derivatives import BACKENDS, agree, gradients, perceptron, products
from torch import nn

import bothways
from bothways.grad import again

everywhere = pytest.mark.parametrize("backend", BACKENDS)

# Each makes a step, a function of a batch's size, that gives tensors to compare.


def residual(compiler):
    """A network that has to satisfy a differential equation of the first order."""
    net = perceptron(2, 16, 16, 1)
    run = compiler(net)

    def step(size):
        net.zero_grad()
        x = torch.randn(size, 2, requires_grad=True)
        u = run(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        ((slope.sum(1) - u[:, 0]) ** 2).mean().backward()
        return [x.grad, slope, *gradients(net)]

    return step


def residual_of_second_order(compiler):
    net = perceptron(2, 16, 16, 1)
    run = compiler(net)

    def step(size):
        net.zero_grad()
        x = torch.randn(size, 2, requires_grad=True)
        u = run(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        ((curve[:, 0] + slope[:, 1] - u[:, 0]) ** 2).mean().backward()
        return [x.grad, slope, curve, *gradients(net)]

    return step


def penalty(compiler):
    """A critic whose slope is held near 1 between real and made samples."""
    net = perceptron(8, 16, 16, 1, activation=nn.LeakyReLU)
    run = compiler(net)

    def step(size):
        net.zero_grad()
        real, made = torch.randn(size, 8), torch.randn(size, 8)
        between = (real + 0.3 * made).requires_grad_()
        score = run(between)
        (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
        (run(made).mean() - run(real).mean() + ((slope.norm(2, 1) - 1) ** 2).mean()).backward()
        return gradients(net)

    return step


def meta_learning(compiler):
    """Two steps of gradient descent, through which the parameters they start from are trained."""
    net = perceptron(4, 16, 16, 1)
    loss_of = compiler(lambda given, x, y: F.mse_loss(torch.func.functional_call(net, given, (x,)), y))

    def step(size):
        net.zero_grad()
        x, y = torch.randn(size, 4), torch.randn(size, 1)
        fast = dict(net.named_parameters())
        for _ in range(2):
            found = torch.autograd.grad(loss_of(fast, x, y), list(fast.values()), create_graph=True)
            fast = {name: value - 0.1 * slope for (name, value), slope in zip(fast.items(), found, strict=True)}
        loss_of(fast, x, y).backward()
        return gradients(net)

    return step


def hessian_vector_product(compiler):
    net = perceptron(4, 16, 16, 1)
    run = compiler(net)

    def step(size):
        parameters = list(net.parameters())
        found = torch.autograd.grad(run(torch.randn(size, 4)).square().mean(), parameters, create_graph=True)
        return [*found, *torch.autograd.grad(found, parameters, [torch.ones_like(one) for one in found])]

    return step


def whole_hessian(compiler):
    net = perceptron(4, 16, 1)
    total = compiler(lambda x: net(x).sum())
    return lambda size: [torch.autograd.functional.hessian(total, torch.randn(size, 4))]


def slope_of_a_hidden_tensor(compiler):
    net = perceptron(4, 16, 16, 1)
    run = compiler(net)

    def step(size):
        net.zero_grad()
        x = torch.randn(size, 4, requires_grad=True)
        hidden = x.sin() * 2
        (slope,) = torch.autograd.grad(run(hidden).sum(), hidden, create_graph=True)
        slope.square().sum().backward()
        return [x.grad, *gradients(net)]

    return step


def derivative_by_two_backwards(compiler):
    """A forward derivative as the derivative of a backward by the gradient it is given."""
    net = perceptron(4, 16, 4)
    run = compiler(net)

    def step(size):
        net.zero_grad()
        x, given = (torch.randn(size, 4, requires_grad=True) for _ in range(2))
        (first,) = torch.autograd.grad(run(x), x, given, create_graph=True)
        (forward,) = torch.autograd.grad(first, given, torch.ones_like(first), create_graph=True)
        forward.square().sum().backward()
        return [forward, x.grad, given.grad, *gradients(net)]

    return step


SCENES = (
    residual, residual_of_second_order, penalty, meta_learning, hessian_vector_product, whole_hessian,
    slope_of_a_hidden_tensor, derivative_by_two_backwards,
)  # fmt: skip


# The critic is called with samples that need a gradient and with others, the loss with parameters and with results.
CAPTURES = {penalty: 4, meta_learning: 4}


# What native adds to aot_eager is the same for all, and building kernels takes long.
CASES = [
    pytest.param(
        scene, backend, id=f"{scene.__name__}-{backend}",
        marks=pytest.mark.slow if backend == "native" and scene not in (residual, penalty) else (),
    )
    for scene in SCENES
    for backend in ("eager", "aot_eager", "native")
]  # fmt: skip


@pytest.mark.parametrize(("scene", "backend"), CASES)
def test_no_product_runs_more_often_than_in_eager(scene, backend):
    plain, step, compiled = agree(scene, backend)
    for size in (6, 9):  # of the program for one size, and of the one for all
        assert products(lambda: step(size)) <= products(lambda: plain(size))
    assert [len(bothways.history(function)) for function in compiled] == [CAPTURES.get(scene, 2)]


def test_a_backward_for_all_sizes_is_compiled_once():
    made = []

    def noting(graph, inputs):
        made.append(graph)
        return graph.forward

    _, step, _ = agree(residual, bothways.backends.aot(fw_compiler=noting))
    count = len(made)
    for size in (8, 10, 13, 21):
        step(size)
    assert len(made) == count


def test_the_products_of_a_convolution():
    torch.manual_seed(0)

    def scene(compiler):
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 1))
        run = compiler(net)

        def step(size):
            net.zero_grad()
            x = torch.randn(size, 1, 8, 8, requires_grad=True)
            (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
            slope.square().sum().backward()
            return [x.grad, *gradients(net)]

        return step

    plain, step, _ = agree(scene, "aot_eager", sizes=(4, 4, 4))
    assert products(lambda: step(4)) <= products(lambda: plain(4))


def test_a_gradient_that_is_not_wanted_is_not_computed():
    def scene(compiler):
        net = perceptron(4, 16, 16, 1)
        run = compiler(net)

        def step(size):
            x = torch.randn(size, 4, requires_grad=True)
            return torch.autograd.grad(run(x).sum(), x)

        return step

    plain, step, _ = agree(scene, "aot_eager")
    for size in (6, 9):
        assert products(lambda: step(size)) <= products(lambda: plain(size))


def test_a_graph_goes_back_to_saving_less(monkeypatch):
    monkeypatch.setattr(again, "PATIENCE", 5)
    run = bothways.compile(lambda x: (((x * 2).clamp(-1, 1) + 3).abs() * x).exp(), backend="aot_eager")
    x = torch.randn(1 << 14, requires_grad=True)
    (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    counts = set()
    for _ in range(again.PATIENCE + 2):
        y = run(x)
        counts.add(len(y.grad_fn.saved_tensors))
        y.sum().backward()
    assert len(counts) == 2, "the twin saves what eager saves, the graph itself less"
