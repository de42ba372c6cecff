"""What captured code does to a tensor itself: gradients that are set, leaves that are made, Parameters."""

import copy

import pytest
import torch
from agreeing import BACKENDS, agree
from observing import facts
from torch import nn

import bothways
from bothways.testing import CompileCounterWithBackend, same


def leaf(*content):
    return torch.tensor(content, requires_grad=True)


def check(function, make, backend="eager", programs=None):
    """Each side has arguments of its own, three times: results, arguments and their gradients stay alike."""
    arguments = []

    def reset():
        arguments[:] = make()

    def observe(run, _):
        result = facts(run(*arguments))
        return {"result": result, "arguments": facts(arguments), "gradients": facts([x.grad for x in arguments])}

    agree(function, observe, 1, 2, 3, backend=backend, reset=reset, programs=programs, fullgraph=True)
    return arguments


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_is_set(backend):
    def function(x, y):
        x.grad = y * 2
        return x.grad + 1

    x, _ = check(function, lambda: (leaf(1.0, 2.0), torch.ones(2)), backend, programs=1)
    assert same(x.grad, torch.full((2,), 2.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_accumulate(backend):
    def function(x, y):
        if x.grad is None:
            x.grad = torch.zeros_like(x)
        x.grad += y
        x.grad.mul_(2)
        return x.grad.sum()

    check(function, lambda: (leaf(1.0, 2.0), torch.ones(2)), backend, programs=2)


def test_a_gradient_is_the_very_tensor():
    def function(x, y):
        x.grad = y
        return y

    x, y = leaf(1.0), torch.ones(1)
    assert bothways.compile(function, backend="eager", fullgraph=True)(x, y) is y
    assert x.grad is y


def test_a_gradient_is_removed():
    def function(x):
        before = x.grad
        x.grad = None
        return before, x.grad, x * 2

    x = leaf(1.0)
    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        (x * 3).sum().backward()
        gradient = x.grad
        assert compiled(x)[0] is gradient
        assert x.grad is None
    assert compiled(x)[0] is None  # another program: there was none


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(2, dtype=torch.float64), 1.0])
def test_what_does_not_fit_raises_as_eager_does(wrong):
    def function(x):
        x.grad = wrong
        return x

    with pytest.raises((TypeError, RuntimeError)) as plain:
        function(leaf(1.0, 2.0))
    with pytest.raises(type(plain.value)):
        bothways.compile(function, backend="eager")(leaf(1.0, 2.0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by", ["method", "attribute"])
def test_an_argument_comes_to_require_a_gradient(backend, by):
    def function(x):
        if by == "method":
            x.requires_grad_()
        else:
            x.requires_grad = True
        return (x * 3).sin()

    counter = CompileCounterWithBackend(backend)
    compiled = bothways.compile(function, backend=counter, fullgraph=True)
    for _ in range(2):
        plain, other = torch.ones(3), torch.ones(3)
        function(plain).sum().backward()
        result = compiled(other)
        assert other.requires_grad and result.requires_grad
        result.sum().backward()
        assert same(other.grad, plain.grad)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_are_frozen(backend):
    def function(module, x):
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        return module(x)

    torch.manual_seed(0)
    plain = nn.Linear(3, 3)
    other = copy.deepcopy(plain)
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        x, y = leaf(1.0, 2.0, 3.0), leaf(1.0, 2.0, 3.0)
        function(plain, x).sum().backward()
        compiled(other, y).sum().backward()
        assert same(x.grad, y.grad) and other.weight.grad is None
        assert not other.weight.requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leaf_is_made_inside(backend):
    def function(x):
        y = (x * 2).detach().requires_grad_()
        return y, (y * y * x).sum()

    plain, other = leaf(1.0, 2.0), leaf(1.0, 2.0)
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        made, result = function(plain)
        result.backward()
        made_by_other, result = compiled(other)
        result.backward()
        assert made_by_other.is_leaf and same(made_by_other.grad, made.grad)
        assert same(other.grad, plain.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_that_was_used_before_wants_a_gradient(backend):
    def function(x):
        y = x * 2
        x.requires_grad_()
        return y + x

    x, other = torch.ones(2), torch.ones(2)
    expected, found = function(x), bothways.compile(function, backend=backend, fullgraph=True)(other)
    assert same(found, expected) and found.requires_grad and other.requires_grad
    for result in (expected, found):
        result.sum().backward()
    assert same(other.grad, x.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_is_made_inside(backend):
    def function(x):
        made = nn.Parameter(x * 2)
        return made, isinstance(made, nn.Parameter), (made * x).sum()

    plain, other = leaf(1.0, 2.0), leaf(1.0, 2.0)
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        made, is_parameter, result = compiled(other)
        expected = function(plain)
        assert type(made) is nn.Parameter and is_parameter and same(made, expected[0])
        expected[2].backward()
        result.backward()
        assert same(made.grad, expected[0].grad) and same(other.grad, plain.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_is_replaced(backend):
    def function(module, x):
        module.weight = nn.Parameter(module.weight * 2)
        return module(x)

    torch.manual_seed(0)
    plain = nn.Linear(3, 3)
    other = copy.deepcopy(plain)
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        expected = function(plain, torch.ones(3))
        result = compiled(other, torch.ones(3))
        assert same(result, expected)
        expected.sum().backward()
        result.sum().backward()
        assert same(other.weight.grad, plain.weight.grad) and type(other.weight) is nn.Parameter
    assert list(other._parameters) == ["weight", "bias"]


def test_layers_are_made_inside():
    def function(x):
        layer = nn.Linear(3, 2)
        return layer(x), layer

    torch.manual_seed(0)
    expected, plain = function(torch.ones(3))
    torch.manual_seed(0)
    result, layer = bothways.compile(function, backend="eager", fullgraph=True)(torch.ones(3))
    assert same(result, expected) and same(layer.state_dict(), plain.state_dict())
    result.sum().backward()
    assert layer.weight.grad is not None


def test_a_number_that_is_a_tensor_stays_one():
    def function(x, y, factor):
        x = x.add(y, alpha=factor)
        return x.addcdiv(y, y + 1, value=-factor)

    arguments = torch.ones(3), torch.arange(3.0), torch.tensor(0.5)
    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    assert same(compiled(*arguments), function(*arguments))
    assert same(compiled(*arguments[:2], torch.tensor(2.0)), function(*arguments[:2], torch.tensor(2.0)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_is_replaced(backend):
    def function(x, y):
        before = x.sum()
        x.data = y * 2
        return before, x * y, x.shape

    for make in (torch.ones, lambda *shape: torch.ones(*shape).requires_grad_()):
        plain, other = make(2), make(2)
        compiled = bothways.compile(function, backend=backend, fullgraph=True)
        for size in (3, 3, 4):
            expected, result = function(plain, torch.ones(size)), compiled(other, torch.ones(size))
            assert same(result, expected) and same(other, plain)
            assert [t.requires_grad for t in result[:2]] == [t.requires_grad for t in expected[:2]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_that_is_shared_stays_shared(backend):
    def function(x, y):
        x.data = y
        y.add_(1)
        return x * 2

    plain, other = torch.zeros(2), torch.zeros(2)
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    y, z = torch.ones(2), torch.ones(2)
    assert same(compiled(other, z), function(plain, y))
    z.add_(1), y.add_(1)
    assert same(other, plain) and same(z, y)
