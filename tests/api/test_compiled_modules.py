"""``compile(module)``: what it gives back is that module for all that use it, and runs compiled."""

import copy
import gc
import inspect
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

import bothways
from bothways.testing import CompileCounter, same

X = torch.arange(12.0).reshape(3, 4) / 10


class Net(nn.Module):
    """Importable, so that it pickles."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)
        self.scale, self.calls = 2.0, 0

    def forward(self, x, *, shift=0.0):
        self.calls += 1
        return self.bn(self.fc(x)) * self.scale + shift

    def encode(self, x):
        return self.fc(x)


@pytest.fixture
def modules():
    """A plain module, its copy, and the copy compiled."""
    torch.manual_seed(0)
    plain = Net()
    other = copy.deepcopy(plain)
    return plain, other, bothways.compile(other, backend=CompileCounter(), fullgraph=True)


def test_it_computes_the_same(modules):
    plain, other, compiled = modules
    for kwargs in ({}, {}, {"shift": 1.0}):
        assert same(compiled(X, **kwargs), plain(X, **kwargs))
    assert other.calls == compiled.calls == plain.calls == 3
    assert same(compiled.encode(X), plain.encode(X))


def test_it_is_the_module(modules):
    plain, other, compiled = modules
    assert isinstance(compiled, Net) and isinstance(compiled, nn.Module) and type(compiled).__name__ == "Net"
    assert repr(compiled) == repr(plain)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in compiled.named_modules()] == [name for name, _ in plain.named_modules()]
    assert all(a is b for a, b in zip(compiled.parameters(), other.parameters(), strict=True))
    assert compiled.fc is other.fc


def test_attributes_go_both_ways(modules):
    _, other, compiled = modules
    compiled.scale = 5.0
    other.extra = 3
    compiled.weight = nn.Parameter(torch.ones(1))
    assert other.scale == 5.0 and compiled.extra == 3 and "weight" in other._parameters
    del compiled.extra
    assert not hasattr(other, "extra")


def test_changes_are_noticed(modules):
    plain, other, compiled = modules
    for change in (
        lambda m: setattr(m, "scale", 7.0),
        lambda m: m.eval(),
        lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
        lambda m: m.double(),
        lambda m: m.float().train(),
        lambda m: setattr(m, "fc", nn.Identity()),
    ):
        change(plain), change(compiled)
        x = X.to(next(plain.parameters()).dtype)
        assert compiled.training == other.training == plain.training
        assert same(compiled(x), plain(x)) and same(other.state_dict(), plain.state_dict())


def test_hooks_on_it_run_once(modules):
    plain, _, compiled = modules
    log = []
    for module in (plain, compiled):
        module.register_forward_hook(lambda m, args, out: (log.append(type(m).__name__), out * 2)[1])
    for _ in range(2):
        assert same(compiled(X), plain(X))
    assert log == ["Net"] * 4


def test_training_it(modules):
    plain, other, compiled = modules
    optimizers = [torch.optim.Adam(module.parameters(), lr=0.1) for module in (plain, compiled)]
    losses = [[], []]
    for _ in range(4):
        for module, optimizer, seen in zip((plain, compiled), optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss = module(X).pow(2).mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    assert same(losses[0], losses[1]) and same(other.state_dict(), plain.state_dict())
    assert same([p.grad for p in other.parameters()], [p.grad for p in plain.parameters()])


def test_inside_another_module(modules):
    plain, other, compiled = modules
    outer, expected = nn.Sequential(compiled, nn.ReLU()), nn.Sequential(plain, nn.ReLU())
    assert list(outer.state_dict()) == list(expected.state_dict())
    assert same(outer(X), expected(X))
    both = bothways.compile(outer, backend=CompileCounter(), fullgraph=True)
    assert same(both(X), expected(X)) and other.calls == 2


def test_copies_are_of_their_own(modules):
    plain, other, compiled = modules
    deep = copy.deepcopy(compiled)
    assert isinstance(deep, Net) and deep.fc is not other.fc
    nn.init.zeros_(other.fc.weight)
    assert same(deep(X), plain(X)) and not same(compiled(X), plain(X))


def test_saving_and_loading(modules):
    plain, _, compiled = modules
    compiled(X), plain(X)
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    for loaded in (pickle.loads(pickle.dumps(compiled)), torch.load(buffer, weights_only=False)):
        assert type(loaded) is Net and same(loaded(X), copy.deepcopy(plain)(X))
    buffer = io.BytesIO()
    torch.save(compiled.state_dict(), buffer)
    buffer.seek(0)
    fresh = Net()
    fresh.load_state_dict(torch.load(buffer))
    assert same(fresh.state_dict(), plain.state_dict())


def test_only_forward_is_compiled():
    torch.manual_seed(0)
    plain = Net()
    other = copy.deepcopy(plain)
    other.forward = bothways.compile(other.forward, backend=CompileCounter(), fullgraph=True)
    for _ in range(2):
        assert same(other(X), plain(X))
    assert other.calls == 2


def test_a_compiled_forward_in_the_class():
    class Decorated(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        @bothways.compile(backend="eager", fullgraph=True)
        def forward(self, x):
            return self.fc(x)

    for _ in range(2):
        module = Decorated()
        assert same(module(X), nn.functional.linear(X, module.fc.weight, module.fc.bias))


class Hooked(torch.nn.Module):
    """Calls its own ``forward``, as libraries do, and says how often hooks ran."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = torch.nn.Linear(3, 3), []
        self.register_forward_hook(lambda module, args, result: self.seen.append(result.shape))

    def forward(self, x, scale=2.0, *, shift=0):
        return self.inner(x).relu() * scale + shift

    def loss(self, x):
        return self.forward(x, shift=1).sum()


def test_a_call_of_forward_is_compiled_as_well_and_calls_no_hooks():
    torch.manual_seed(0)
    model, x = Hooked(), torch.randn(2, 3)
    counter = CompileCounter()
    twin = bothways.compile(model, backend=counter, fullgraph=True)
    for shift in (1, 1):
        assert torch.equal(twin.forward(x, shift=shift), model.inner(x).relu() * 2 + shift)
    assert counter.frame_count == 1 and model.seen == []
    assert torch.equal(twin.loss(x), model.loss(x)) and counter.frame_count == 1
    assert torch.equal(twin(x), model.forward(x)) and model.seen == [(2, 3)]
    assert len(bothways.history(twin.forward)) == 1 and len(bothways.history(twin)) == 1
    twin.loss(x).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_forward_still_looks_like_the_users():
    model = Hooked()
    twin = bothways.compile(model, backend="eager")
    assert inspect.signature(twin.forward) == inspect.signature(model.forward)
    assert twin.forward.__doc__ == model.forward.__doc__ and twin.forward.__qualname__ == "Hooked.forward"

    def captured(x):
        return twin.forward(x, 3.0)

    x = torch.randn(2, 3)
    assert torch.equal(bothways.compile(captured, backend="eager", fullgraph=True)(x), model.forward(x, 3.0))
    assert torch.equal(torch.jit.trace(twin, x)(x), model(x))
    model.forward = lambda x: x - 1  # of the instance, as libraries replace it
    assert torch.equal(twin.forward(x), x - 1) and torch.equal(twin(x), x - 1)


def test_what_forward_held_goes_with_the_module():
    model = Hooked()
    twin = bothways.compile(model, backend="eager")
    twin.forward(torch.randn(2, 3))
    gone = weakref.ref(model)
    gc.disable()
    try:
        model._forward_hooks.clear()  # which refers to the module
        del model, twin
        assert gone() is None
    finally:
        gc.enable()
