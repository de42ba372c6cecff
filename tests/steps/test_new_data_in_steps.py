"""``tensor.data = value`` in a step: what is read no more is set behind everything else, which stays one part."""

import contextlib

import pytest
import torch
from agreeing import BACKENDS, agree
from seeding import seeded
from torch import nn

import bothways

pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.every_backend,
    pytest.mark.usefixtures("kernels_for_all"),
]


def averages(model, other, x):
    for average, parameter in zip(other.parameters(), model.parameters(), strict=True):
        average.data = 0.9 * average.data + 0.1 * parameter.data


def without_gradients(model, other, x):
    with torch.no_grad():
        averages(model, other, x)


def shared_with_parameters(model, other, x):
    for average, parameter in zip(other.parameters(), model.parameters(), strict=True):
        average.data = parameter.data


def one_for_two(model, other, x):
    value = model[0].weight.data * 2
    other[0].weight.data = value
    other[1].weight.data = value[:3]


def of_each_other(model, other, x):
    kept = other[0].weight.data
    other[0].weight.data = model[0].weight.data * 2
    model[0].weight.data = kept


def from_one_to_the_next(model, other, x):
    other[0].weight.data = model[0].weight
    model[0].weight.data = model[0].weight.data + 1


def twice(model, other, x):
    other[0].bias.data = x.mean() + other[0].bias.data
    other[0].bias.data = other[0].bias.data * 2


def read_afterwards(model, other, x):
    other[0].bias.data = other[0].bias.data * 2
    return other[0].bias.sum().item()


def changed_afterwards(model, other, x):
    value = other[0].bias.data * 2
    other[0].bias.data = value
    value += 1
    model[0].bias.data = value
    model[0].bias.data.mul_(2)


def before_a_backward(model, other, x):
    loss = (model(x) * other(x)).sum()
    other[0].weight.data = other[0].weight.data * 0.5
    loss.backward()


def with_other_sizes(model, other, x):
    model[1].weight.data = torch.cat([model[1].weight.data, x[:1, :4]])
    model[1].bias.data = torch.cat([model[1].bias.data, x[:1, 0]])
    for layer in (model[1].weight, model[1].bias):
        layer.grad = None


def before_an_error(model, other, x):
    other[0].bias.data = other[0].bias.data * 2
    if x.sum() < 1e6:
        raise RuntimeError("not this time")


AT_THE_END = [
    averages, without_gradients, shared_with_parameters, one_for_two, of_each_other, from_one_to_the_next, twice,
    read_afterwards, changed_afterwards, before_a_backward, with_other_sizes, before_an_error,
]  # fmt: skip


def model_of(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)).double()


def shared_memory(tensors):
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [places.index(place) for place in places]


def program(at_the_end):
    world = {}

    def step(x):
        model, other, optimizer = world["all"]
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), at_the_end(model, other, x)

    def reset():
        model, other = model_of(0), model_of(1)
        world["all"] = model, other, torch.optim.SGD(model.parameters(), lr=0.1)

    def observe(function, call):
        model, other, _ = world["all"]
        x = torch.randn(5, 6, dtype=torch.double, generator=seeded(call))
        found = {}
        with contextlib.suppress(RuntimeError):
            found["result"] = function(x)
        tensors = [*model.parameters(), *other.parameters()]
        found["tensors"] = [tensor.detach().clone() for tensor in tensors]
        found["gradients"] = [tensor.grad for tensor in tensors]
        found["versions"] = [tensor._version for tensor in tensors]
        found["leaves"] = [(tensor.is_leaf, tensor.requires_grad, type(tensor)) for tensor in tensors]
        found["memory"] = shared_memory(tensors)
        return found

    return step, observe, reset


@pytest.mark.parametrize("at_the_end", AT_THE_END, ids=lambda function: function.__name__)
def test_data_is_set_as_in_eager(backend, at_the_end):
    step, observe, reset = program(at_the_end)
    calls = (1,) if at_the_end is with_other_sizes else (1, 2, 3, 4)
    agree(step, observe, *calls, backend=backend, reset=reset)


@pytest.mark.parametrize("at_the_end", [averages, without_gradients], ids=lambda function: function.__name__)
def test_the_step_before_it_is_one_part(backend, at_the_end):
    if backend == "eager":
        pytest.skip("cuts nothing")
    step, observe, reset = program(at_the_end)
    compiled = agree(step, observe, 1, 2, 3, backend=backend, reset=reset, fullgraph=True)
    told = bothways.explain(compiled).details
    assert "part 2 of 2: 4 operations as captured (.data is set)" in told
