"""Where no kernel of ours takes a graph, ATen is called as often as eager calls it: nothing is computed again.

There is no GPU here: the native backend is told that its kernels cannot read any tensor.
"""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from aten_counting import computing_calls
from torch import nn

import bothways
from bothways.backends import native
from bothways.grad.tracing import origins


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    monkeypatch.setattr(native, "_why_not", lambda tensor: "there are no kernels")


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, 4, -1).transpose(1, 2) for part in self.into(self.first(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.wide(self.second(x)), approximate="tanh"))


class Pointwise(nn.Module):
    """What would be computed again if that were for nothing."""

    def forward(self, x):
        for _ in range(3):
            x = torch.sigmoid(x * 1.1 + 0.3) - x.tanh()
        return x


class GatedUnit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.out(F.silu(self.first(x)) * self.second(x))


class RootMeanSquare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


def normalised():
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(4)])


MODELS = {
    "a transformer's layer": (Block, (2, 8, 32)),
    "pointwise operations": (Pointwise, (8, 16)),
    "a gated unit": (GatedUnit, (8, 16)),
    "an RMS norm": (RootMeanSquare, (8, 16)),
    "linear, layer norm, GELU": (
        lambda: nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(3)]),
        (8, 16),
    ),
    "an encoder's layer with dropout": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 8, 16)),
}


def stepping(model, run, x, context):
    def step():
        model.zero_grad(set_to_none=True)
        with context():
            result = run(x)
        result.float().sum().backward()

    return step


def calls_of(model, x, context=contextlib.nullcontext):
    """What eager calls, and what the compiled model calls."""
    other = copy.deepcopy(model)
    plain = stepping(model, model, x, context)
    compiled = stepping(other, bothways.compile(other, backend="native"), x, context)
    for _ in range(2):
        plain()
        compiled()
    return computing_calls(plain), computing_calls(compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_calls_aten_as_often_as_eager(name, dtype):
    make, shape = MODELS[name]
    expected, found = calls_of(make().to(dtype), torch.randn(shape, dtype=dtype, requires_grad=True))
    assert sum(found.values()) <= sum(expected.values()), (found - expected, expected - found)


def test_autocast_casts_each_weight_once():
    model, x = Block(), torch.randn(2, 8, 32)
    expected, found = calls_of(model, x, lambda: torch.autocast("cpu", torch.bfloat16))
    assert sum(found.values()) <= sum(expected.values()), (found - expected, expected - found)


def test_statistics_are_kept_and_counters_written_by_one_call_each():
    """Eager adds to four counters; here are one copy of all statistics and one of all counters beside that."""
    expected, found = calls_of(normalised(), torch.randn(16, 8))
    assert sum(found.values()) <= sum(expected.values()) + 2, (found - expected, expected - found)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=True),
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=False),
        lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True),
    ],
    ids=["SGD on lists", "SGD one by one", "fused AdamW"],
)
def test_an_optimizer_changes_parameters_in_place(make, monkeypatch):
    monkeypatch.setattr(origins, "update_of", lambda *call: None)  # which takes them apart on CPUs alone

    def optimizing():
        torch.manual_seed(0)
        model = Block()
        optimizer = make(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        return model, optimizer

    (model, optimizer), (other, twin) = optimizing(), optimizing()
    plain, compiled = optimizer.step, bothways.compile(lambda: twin.step(), backend="native")
    for _ in range(3):
        plain()
        compiled()
    expected, found = computing_calls(plain), computing_calls(compiled)
    assert sum(found.values()) <= sum(expected.values()), (found - expected, expected - found)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_with_kernels_cheap_things_are_computed_again(monkeypatch):
    def program(x):
        for _ in range(3):
            x = (x * 1.1 + 0.3) * (x - 1)
        return x

    def saved():
        x = torch.randn(256, 256, requires_grad=True)
        result = bothways.compile(lambda x: program(x), backend="native")(x)
        return len(result.grad_fn.saved_tensors)

    without = saved()
    monkeypatch.undo()
    bothways.reset()
    assert saved() < without


def test_training_with_normalisations_agrees_with_eager():
    torch.manual_seed(0)
    model = normalised()
    other = copy.deepcopy(model)
    compiled = bothways.compile(other, backend="native")
    for _ in range(3):
        x = torch.randn(16, 8)
        for own, run in ((model, model), (other, compiled)):
            own.zero_grad()
            run(x).square().sum().backward()
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_counter_is_not_counted_again_by_a_second_derivative(backend):
    def program(x, counter):
        counter.add_(1)
        return x.sin() * x

    def scene(function):
        x, counter = torch.full((4,), 0.5, requires_grad=True), torch.zeros((), dtype=torch.long)
        seen = []
        for _ in range(3):
            (first,) = torch.autograd.grad(function(x, counter).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            seen += [first.detach(), second, counter.clone(), counter._version]
        return seen

    for one, two in zip(scene(program), scene(bothways.compile(program, backend=backend)), strict=True):
        torch.testing.assert_close(one, two)
