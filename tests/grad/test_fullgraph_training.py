"""Training programs that ``fullgraph=True`` takes: each is captured whole, and results and gradients are eager's."""

import pytest
import torch
from agreeing import agree
from observing import BACKENDS, facts, leaf
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import bothways
from bothways.testing import difference

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def train(function, *, steps=3, shape=(4, 3), parameters=(), watch=lambda: None):
    """A few steps with a backward each: results, gradients, and what ``watch`` sees after each."""
    torch.manual_seed(0)
    seen = []
    for _ in range(steps):
        x = leaf(*shape)
        result = function(x)
        result.sum().backward()
        seen.append((result, x.grad, [parameter.grad for parameter in parameters], watch()))
        seen = [facts(item) for item in seen]
    return seen


def training_agrees(program, backend, *, reset=lambda: None, **options):
    """Plain and compiled train alike; one program serves every step, and nothing broke."""

    def observe(function, _):
        return {"results, gradients and what is watched, step by step": train(function, **options)}

    compiled = agree(program, observe, "training", backend=backend, reset=reset, programs=1, fullgraph=True)
    [compilation] = bothways.history(compiled)
    assert compilation.breaks == [] and compilation.graph is not None


def test_a_hook_on_an_intermediate(backend):
    def program(x):
        y = x.sin()
        y.register_hook(lambda grad: grad * 2 + 1)
        return y * x

    training_agrees(program, backend)


def test_a_hook_with_side_effects_on_an_intermediate(backend):
    norms = []
    state = {"scale": 1.0}

    def reset():
        norms.clear()
        state["scale"] = 1.0

    def remember(grad):
        norms.append(grad.shape)
        state["scale"] += 0.5
        return grad * state["scale"]

    def program(x):
        y = x.sin()
        y.register_hook(remember)
        return y * x

    training_agrees(program, backend, reset=reset, watch=lambda: (list(norms), state["scale"]))


def test_retain_grad_on_an_intermediate(backend):
    kept = []

    def program(x):
        y = x.sin()
        y.retain_grad()
        kept.append(y)
        return y * x

    training_agrees(program, backend, reset=kept.clear, watch=lambda: [y.grad for y in kept])


def test_double_backward(backend):
    def program(x):
        return torch.tanh(x).pow(3)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    sides = []
    for function in (program, compiled):
        torch.manual_seed(0)
        seen = []
        for _ in range(2):
            x = leaf(4, 3)
            (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            (function(x).sum() + gradient.pow(2).sum()).backward()
            seen.append(facts((gradient, x.grad)))
        sides.append(seen)
    assert difference(*sides) is None
    assert len(bothways.history(compiled)) == 1


def test_a_network_and_a_gradient_penalty(backend):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    compiled = bothways.compile(network, backend=backend, fullgraph=True)
    sides = []
    for function in (network, compiled):
        network.zero_grad()
        torch.manual_seed(1)
        x = leaf(4, 3)
        loss = function(x).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + (gradient.norm(dim=1) - 1).pow(2).mean()).backward()
        sides.append([facts(parameter.grad) for parameter in network.parameters()])
    assert difference(*sides) is None


def test_saved_tensors_hooks_inside(backend):
    packed = []

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor * 2

    def program(x):
        with saved_tensors_hooks(pack, lambda tensor: tensor / 2):
            y = x.exp() * x
        return y.sin()

    training_agrees(program, backend, reset=packed.clear, watch=lambda: list(packed))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_full_backward_hooks_of_a_module(backend):
    net, seen = Net(), []

    def reset():
        seen.clear()
        net.zero_grad()

    def after(module, inputs, outputs):
        seen.append((type(module).__name__, [tuple(grad.shape) for grad in (*inputs, *outputs)]))
        return tuple(grad * 2 for grad in inputs)

    net.first.register_full_backward_hook(after)
    net.second.register_full_backward_hook(after)
    net.second.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] + 1,))

    def program(x):
        return net(x)

    training_agrees(program, backend, reset=reset, parameters=list(net.parameters()), watch=lambda: list(seen))


def test_work_in_place_under_grad(backend):
    def program(x):
        y = x * 2
        y.add_(1)
        y[0] = 0
        part = y.view(-1)[2:]
        part.mul_(3).add_(x[0, 0])
        return y.relu_() * part.sum()

    training_agrees(program, backend)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Square.apply(x) * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * Square.apply(x) * grad


def test_a_custom_function_in_a_custom_function(backend):
    def program(x):
        return Cubed.apply(x).sin()

    training_agrees(program, backend)


def test_a_custom_function_in_a_custom_function_twice(backend):
    def program(x):
        return Cubed.apply(x).sin()

    sides = []
    for function in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        x = leaf(4, 3)
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        sides.append(facts((gradient, *torch.autograd.grad(gradient.sum(), x))))
    assert difference(*sides) is None
