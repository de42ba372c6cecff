"""A backward computes the gradients that this run of the engine wants, and learns what it is asked for."""

import pytest
import torch
from backward_counting import errors_of_the_engine
from second_derivatives import BACKENDS
from torch import nn
from torch.autograd.profiler import profile

import bothways
from bothways.config import config
from bothways.torch_compat import wanted

everywhere = pytest.mark.parametrize("backend", BACKENDS)


def function(x, first, second):
    return (x @ first).tanh() @ second


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=dtype, requires_grad=True)
    return x, nn.Parameter(torch.randn(4, 6, dtype=dtype)), nn.Parameter(torch.randn(6, 2, dtype=dtype))


def in_turn(run):
    """One graph, asked for another set of gradients in each turn; and what hooks of a leaf are told."""
    x, first, second = tensors()
    told, found = [], []
    x.register_hook(lambda gradient: told.append(gradient is None))
    asked = [(x,), (x,), (first,), (x, second), (x,), (second, first), (x, first, second), (first,), (x,)]
    for inputs in asked:
        y = run(x, first, second)
        found += torch.autograd.grad(y.square().sum(), inputs)
        y = run(x, first, second)
        y.square().sum().backward(inputs=list(inputs))
        found += [None if value.grad is None else value.grad.clone() for value in (x, first, second)]
        run(x, first, second).sum().backward()
        x.grad = first.grad = second.grad = None
    return found, told


@everywhere
def test_each_run_gets_the_gradients_it_asks_for(backend):
    plain, plain_told = in_turn(function)
    found, told = in_turn(bothways.compile(function, backend=backend))
    assert told == plain_told
    for own, eager in zip(found, plain, strict=True):
        assert (own is None) == (eager is None)
        if own is not None:
            torch.testing.assert_close(own, eager)


def products_in(step):
    with profile() as recorded:
        step()
    return sum(event.name in ("aten::mm", "aten::addmm") for event in recorded.function_events)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("again", [False, True])
def test_what_is_not_asked_for_is_not_computed(backend, again):
    x, first, second = tensors(torch.float64)  # whose products are ATen's, and counted
    compiled = bothways.compile(function, backend=backend)

    def slope(run, inputs):
        return lambda: torch.autograd.grad(run(x, first, second).sum(), inputs, create_graph=again)

    for inputs in [(x,), (first,), (x, second)]:
        for _ in range(3):
            slope(compiled, inputs)()
        assert products_in(slope(compiled, inputs)) == products_in(slope(function, inputs))


def test_the_engine_is_asked_about_a_leaf_only_until_it_has_answered_with_an_error(monkeypatch):
    errors = errors_of_the_engine(monkeypatch)
    x, first, second = tensors()
    compiled = bothways.compile(function, backend="aot_eager")
    for _ in range(2):
        torch.autograd.grad(compiled(x, first, second).sum(), x)
    assert errors
    errors.clear()
    for _ in range(5):
        (found,) = torch.autograd.grad(compiled(x, first, second).sum(), x)
    assert not errors
    torch.testing.assert_close(found, torch.autograd.grad(function(x, first, second).sum(), x)[0])


def test_small_layers_with_gradients_stay_as_captured_where_there_are_no_kernels():
    def told(model, x, backend="aot_eager"):
        with config.patch(kernels_for_small_graphs=False):
            compiled = bothways.compile(model, backend=backend)
            compiled(x)
            return bothways.explain(compiled).details

    small = "as captured (small: ATen is as fast)"
    layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)]
    assert small in told(nn.Sequential(*layers), torch.randn(32, 8))
    assert small not in told(nn.Sequential(*layers), torch.randn(1 << 14, 8))
    fusible = [*layers[:4], nn.Sigmoid(), *layers[4:]]
    assert small not in told(nn.Sequential(*fusible), torch.randn(32, 8))
    assert small not in told(nn.Sequential(*layers), torch.randn(32, 8), "native")


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.Tanh())))
        self.one, self.other = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.trunk(x)
        return self.one(hidden), self.other(hidden).exp()


@pytest.mark.every_backend
@everywhere
def test_the_engine_is_not_asked_of_each_of_many_parameters(monkeypatch, backend):
    ask, asked = wanted._will_run, []
    monkeypatch.setattr(wanted, "_will_run", lambda node: asked.append(node) or ask(node))
    model, x = TwoHeads(), torch.randn(4, 8)
    compiled, parameters = bothways.compile(model, backend=backend), list(model.parameters())

    def found(run):
        one, other = run(x)
        by_all = torch.autograd.grad(one.sum() + other.sum(), parameters, retain_graph=True)
        return [*by_all, *torch.autograd.grad(one.sum(), parameters, allow_unused=True)]

    for _ in range(3):
        torch.testing.assert_close(found(compiled), found(model))
    assert not asked
