"""A parameter whose memory is replaced between a forward and its backward: what eager saved as a window on it shows the
old memory, what it saved as the parameter itself the new one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways
from bothways.testing import same

BACKENDS = ["eager", "aot_eager", "native"]


def by_data(parameter):
    parameter.data = parameter.data.clone() * 3


def by_set(parameter):
    with torch.no_grad():
        parameter.set_(parameter.detach().clone() * 3)


def by_the_module(parameter):
    """What ``module.to`` does to each of its parameters."""
    parameter.data = nn.Parameter(parameter.detach() * 3).data


WAYS = [by_data, by_set, by_the_module]


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Penalised(Two):
    """Reads a weight as it is and by a window."""

    def forward(self, x):
        return super().forward(x) + self.second.weight.square().sum()


class Scaled(nn.Module):
    """Keeps the parameter itself."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.tanh(x * self.scale)


class Adapted(nn.Module):
    """A weight that is not trained, and a small one beside it that is."""

    def __init__(self):
        super().__init__()
        self.enter, self.base = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x):
        h = self.enter(x)
        return self.base(h) + self.up(self.down(h))


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 2, 3), nn.Linear(2, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x.reshape(-1, 1, 4))).mean(-1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, x):
        return F.linear(self.inner(self.table((x.abs() * 2).long().clamp(max=6)).sum(-2)), self.table.weight)


MODELS = [Two, Penalised, Scaled, Adapted, Convolved, Tied]


def gradients(model, function, way, x):
    found = []
    for parameter in list(model.parameters()):
        loss = function(x).square().mean()
        way(parameter)
        try:
            loss.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.append("refused")  # before or after some gradients were added
        else:
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        model.zero_grad()
    return found, [p.detach().clone() for p in model.parameters()]


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", MODELS)
def test_a_backward_reads_the_memory_that_eager_saved(make, way, backend):
    torch.manual_seed(0)
    model = make().double()
    other = copy.deepcopy(model)
    x = torch.randn(6, 4, dtype=torch.double)
    expected = gradients(model, model, way, x)
    got = gradients(other, bothways.compile(other, backend=backend, fullgraph=True), way, x)
    assert same(expected, got)


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_batches_of_sequences(backend):
    torch.manual_seed(0)
    model = Two().double()
    other = copy.deepcopy(model)
    x = torch.randn(2, 3, 4, dtype=torch.double)
    expected = gradients(model, model, by_data, x)
    got = gradients(other, bothways.compile(other, backend=backend, fullgraph=True), by_data, x)
    assert same(expected, got)


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_by_a_state_that_is_assigned(backend):
    torch.manual_seed(0)
    model = Two().double()
    other = copy.deepcopy(model)
    x = torch.randn(6, 4, dtype=torch.double)

    def run(model, function):
        before = list(model.parameters())
        loss = function(x).square().mean()
        state = {name: value.clone() * 3 for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        loss.backward()
        function(x).sum().backward()
        return [p.grad for p in before], [p.grad for p in model.parameters()]

    assert same(run(model, model), run(other, bothways.compile(other, backend=backend)))


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [Two, Scaled, Adapted])
def test_a_second_derivative_goes_to_the_parameter(make, backend):
    torch.manual_seed(0)
    model = make().double()
    other = copy.deepcopy(model)
    x = torch.randn(6, 4, dtype=torch.double, requires_grad=True)

    def run(model, function):
        found = []
        for parameter in [None, *model.parameters()]:
            loss = function(x).square().mean()
            if parameter is not None:
                by_data(parameter)
            (grad,) = torch.autograd.grad(loss, x, create_graph=True)
            grad.square().sum().backward()
            found += [grad.detach(), *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
            model.zero_grad()
        return found

    assert same(run(model, model), run(other, bothways.compile(other, backend=backend)))


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_change_in_place_is_still_an_error(backend):
    model = Two()
    function = bothways.compile(model, backend=backend)
    loss = function(torch.randn(6, 4)).square().mean()
    with torch.no_grad():
        model.second.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_retained_graph_reads_the_old_memory_twice(backend):
    torch.manual_seed(0)
    model = Two().double()
    other = copy.deepcopy(model)
    x = torch.randn(6, 4, dtype=torch.double)

    def run(model, function):
        loss = function(x).square().mean()
        loss.backward(retain_graph=True)
        by_data(model.second.weight)
        loss.backward()
        return [p.grad for p in model.parameters()]

    assert same(run(model, model), run(other, bothways.compile(other, backend=backend)))
