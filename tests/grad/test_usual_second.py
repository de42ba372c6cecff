"""A step with second derivatives goes back by backwards that it knows from the last one, and asks no leaf in vain."""

import pytest
import torch
from backward_counting import errors_of_the_engine
from observing import raised
from second_derivatives import BACKENDS
from torch import nn
from torch.autograd.profiler import profile

import bothways
from bothways.config import config
from bothways.grad.nodes.node import CompiledNode
from bothways.torch_compat import SAVED_KNOW_VERSIONS

everywhere = pytest.mark.parametrize("backend", BACKENDS)
pytestmark = pytest.mark.every_backend
kernels = pytest.mark.parametrize("backend", ["aot_eager", "native"])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def steps_inside(compile):
    """Gradients through two gradient steps, by values that stand for the parameters in turn."""
    model = network()

    @compile
    def loss_with(values, x):
        return torch.func.functional_call(model, values, (x,)).square().mean()

    def step(n):
        torch.manual_seed(n)
        values = dict(model.named_parameters())
        for _ in range(2):
            loss = loss_with(values, torch.randn(5, 3).double())
            slopes = torch.autograd.grad(loss, list(values.values()), create_graph=True)
            values = {name: value - 0.1 * slope for (name, value), slope in zip(values.items(), slopes, strict=True)}
        model.zero_grad()
        loss_with(values, torch.randn(5, 3).double()).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    return step


def curvature(compile):
    """First and second derivatives by the data in a loss."""
    model = network()
    compiled = compile(model)

    def step(n):
        torch.manual_seed(n)
        x = torch.randn(5, 3).double().requires_grad_()
        y = compiled(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        model.zero_grad()
        (y.square().mean() + (slope * bend).mean()).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    return step


@everywhere
@pytest.mark.parametrize("program", [steps_inside, curvature])
def test_second_derivatives_are_found_without_looking_for_their_backwards(program, backend, monkeypatch):
    plain, own = program(lambda target: target), program(lambda target: bothways.compile(target, backend=backend))
    for n in range(4):
        torch.testing.assert_close(own(n), plain(n))
    looked = []
    look = CompiledNode.run_backward
    monkeypatch.setattr(CompiledNode, "run_backward", staticmethod(lambda *args: looked.append(args) or look(*args)))
    for n in range(4, 8):
        torch.testing.assert_close(own(n), plain(n))
    assert not looked


@everywhere
def test_a_backward_that_frees_nothing_asks_no_leaf(backend, monkeypatch):
    errors = errors_of_the_engine(monkeypatch)
    step = steps_inside(lambda target: bothways.compile(target, backend=backend))
    for n in range(3):
        step(n)
    errors.clear()
    step(3)
    assert not errors


def two_sides(x, w):
    return x.exp().sin() + w.sin().exp()


@pytest.mark.skipif(not SAVED_KNOW_VERSIONS, reason="this PyTorch does not tell which of several was changed")
@everywhere
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("changed", ["x", "w"])
def test_what_a_leaf_is_changed_for_is_seen_though_it_was_not_asked(backend, again, changed):
    def run(function):
        found = []
        for _ in range(3):
            x, w = (torch.linspace(0, 1, 4).requires_grad_() for _ in range(2))
            options = {"retain_graph": True, "create_graph": again}
            y = function(x, w).sum()
            found += torch.autograd.grad(y, (x, w), **options)
            with torch.no_grad():
                {"x": x, "w": w}[changed].mul_(2)
            for inputs in (x, w, (x, w)):
                y = function(x, w).sum() if again else y
                found.append(raised(lambda y=y, inputs=inputs: torch.autograd.grad(y, inputs, **options)))
                if found[-1] is None:
                    found += torch.autograd.grad(y, inputs, **options)
        return [value.detach() if isinstance(value, torch.Tensor) else value for value in found]

    with config.patch(kernels_for_small_graphs=True):
        for own, plain in zip(run(bothways.compile(two_sides, backend=backend)), run(two_sides), strict=True):
            if isinstance(plain, torch.Tensor):
                torch.testing.assert_close(own, plain)
            else:
                assert own == plain


@kernels
def test_leaves_that_are_asked_for_one_by_one_are_not_computed_together(backend):
    def product(x, w):
        return (x @ w).tanh() @ w

    x, w = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    compiled = bothways.compile(product, backend=backend)

    def products(run, inputs):
        y = run(x, w).sum()
        with profile() as recorded:
            torch.autograd.grad(y, inputs, retain_graph=True)
        return sum(event.name == "aten::mm" for event in recorded.function_events)

    compiled(x, w).sum().backward()
    for n in range(4):
        for inputs in [(x,), (w,), (x, w)]:
            counted = products(compiled, inputs)
            assert n < 2 or counted == products(product, inputs)


@everywhere
def test_gradients_that_have_a_history_and_such_that_have_none_take_turns(backend):
    def run(function):
        found = []
        for n in range(8):
            torch.manual_seed(n)
            x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
            tangent = torch.randn(3, 3, dtype=torch.float64, requires_grad=n % 2 == 1)
            (slope,) = torch.autograd.grad(function(x, w), x, tangent, create_graph=True)
            found.append(slope.requires_grad)
            found += torch.autograd.grad(slope.sum(), [x, w, *([tangent] if tangent.requires_grad else [])])
            y = function(x, w)
            found += torch.autograd.grad(y, x, tangent.detach(), create_graph=n % 3 == 0, retain_graph=n % 3 == 1)
        return found

    def program(x, w):
        return (x @ w).tanh() * (w @ x).exp() + x

    for own, plain in zip(run(bothways.compile(program, backend=backend)), run(program), strict=True):
        assert own == plain if isinstance(plain, bool) else torch.allclose(own, plain)
