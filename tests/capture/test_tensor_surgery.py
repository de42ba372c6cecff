"""Tensors that become something else inside a function: ``set_``, ``resize_``, ``.data``; and what copies and seeds."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bothways

BACKENDS = ("eager", "aot_eager", "native")


def sets(x, y):
    z = x + 1
    x.set_(y)
    return z, x * 2, x.shape


def sets_storage(x, y):
    x.set_(y.untyped_storage(), 1, (2,), (1,))
    return x + 1, x.shape


def resizes(x, y):
    z = x.sum()
    x.resize_(2)
    return z, x * 2, x.shape[0]


def resizes_as(x, y):
    x.resize_as_(y[:2])
    return x + y[:2]


def takes_data(x, y):
    z = x + 1
    x.data = y * 2
    return z, x + 1, x.shape


def takes_data_of_another_size(x, y):
    x.data = y[:3]
    return x * 2, len(x)


def reads_data(x, y):
    x.data.mul_(2)
    return x + y.data


def sets_what_it_changed(x, y):
    z = x + 1
    x.data /= 2
    x.data = x.data
    return z, x + y, x._version


def sets_what_it_changed_before(x, y):
    data = x.data
    data *= 2
    x.data = y * 3
    x.data = data
    return x + 1, x.data.add_(1)


def sets_what_is_turned(x, y):
    x.data = x.data.unsqueeze_(0)
    return x + 1, x.shape


SURGERY = [
    sets, sets_storage, resizes, resizes_as, takes_data, takes_data_of_another_size, reads_data, sets_what_it_changed,
    sets_what_it_changed_before, sets_what_is_turned,
]  # fmt: skip


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", SURGERY)
def test_an_argument_becomes_something_else(function, backend):
    compiled = bothways.compile(function, backend=backend)
    for size in (4, 4, 5, 4):
        results = []
        for run in (function, compiled):
            x, y = torch.arange(float(size)), torch.arange(float(size)) + 10
            results.append((run(x, y), x.clone(), y.clone(), x.stride()))
            # The tensor as it is now is another kind of input, and then it is that kind.
            results[-1] += (run(x, y), x.clone())
        torch.testing.assert_close(results[1], results[0])


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", SURGERY)
def test_a_captured_tensor_becomes_something_else(function, backend):
    def make():
        held = torch.arange(4.0)

        def closure(y):
            return function(held, y), held.shape

        return closure, held

    plain, mine = make()
    target, other = make()
    compiled = bothways.compile(target, backend=backend)
    for _ in range(3):
        y = torch.arange(4.0) + 10
        torch.testing.assert_close(compiled(y.clone()), plain(y.clone()))
        torch.testing.assert_close(other, mine)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_rest_after_the_surgery_is_differentiated(backend):
    def function(weight, x):
        weight.data = weight.data * 2
        return (weight * x).sum()

    grads = []
    for run in (function, bothways.compile(function, backend=backend)):
        weight, x = torch.ones(3, requires_grad=True), torch.arange(3.0)
        for _ in range(2):
            run(weight, x).backward()
        grads.append((weight.grad, weight.detach()))
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_either_kind(reentrant, backend):
    def block(x):
        return torch.nn.functional.dropout(x.sin(), 0.5) * x

    def function(x):
        return checkpoint(block, x * 2, use_reentrant=reentrant).sum()

    compiled = bothways.compile(function, backend=backend)
    for seed in (0, 0, 1):
        results = []
        for run in (function, compiled):
            torch.manual_seed(seed)
            x = torch.arange(5.0, requires_grad=True)
            value = run(x)
            value.backward()
            results.append((value, x.grad, torch.rand(1)))
        torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_is_copied_inside(backend):
    model = torch.nn.Linear(2, 2)

    def function(model, x):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin.weight.add_(1)
        return twin(x), twin

    compiled = bothways.compile(function, backend=backend)
    x = torch.ones(1, 2)
    for _ in range(2):
        expected, _ = function(model, x)
        actual, twin = compiled(model, x)
        torch.testing.assert_close(actual, expected)
        assert type(twin) is torch.nn.Linear and twin.weight is not model.weight
        torch.testing.assert_close(twin.weight, model.weight + 1)
        assert isinstance(twin.weight, torch.nn.Parameter)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_is_set_inside(backend):
    def function(x):
        before = torch.rand(2)
        torch.manual_seed(3)
        return before, torch.rand(2) + x

    compiled = bothways.compile(function, backend=backend)
    for seed in (0, 1):
        results = []
        for run in (function, compiled):
            torch.manual_seed(seed)
            results.append((run(torch.ones(2)), torch.rand(2), torch.initial_seed()))
        torch.testing.assert_close(results[1], results[0])
