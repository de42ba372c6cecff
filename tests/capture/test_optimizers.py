"""``optimizer.step()`` inside compiled functions: captured whole, with its state, as eager leaves it."""

import copy

import pytest
import torch
from torch import nn, optim

import bothways
from bothways.testing import CompileCounterWithBackend, same

X = torch.sin(torch.arange(24.0)).reshape(6, 4)


def foreach(kind, **options):
    return lambda parameters: kind(parameters, foreach=True, **options)


def matrices(parameters):
    return [parameter for parameter in parameters if parameter.dim() == 2]


OPTIMIZERS = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1),
    "SGD with momentum": lambda parameters: optim.SGD(parameters, 0.1, 0.9, nesterov=True, weight_decay=0.01),
    "SGD foreach": foreach(optim.SGD, lr=0.1, momentum=0.9),
    "SGD fused": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "Adam": optim.Adam,
    "Adam with amsgrad": lambda parameters: optim.Adam(parameters, amsgrad=True, weight_decay=0.1, maximize=True),
    "Adam foreach": foreach(optim.Adam),
    "Adam fused": lambda parameters: optim.Adam(parameters, fused=True),
    "Adam whose learning rate is a tensor": lambda parameters: optim.Adam(parameters, lr=torch.tensor(0.01)),
    "AdamW": optim.AdamW,
    "AdamW foreach": foreach(optim.AdamW),
    "AdamW of groups": lambda parameters: optim.AdamW(
        [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "weight_decay": 0.0}]
    ),
    "RMSprop": lambda parameters: optim.RMSprop(parameters, momentum=0.9, centered=True),
    "RMSprop foreach": foreach(optim.RMSprop),
    "Adagrad": optim.Adagrad,
    "Adagrad foreach": foreach(optim.Adagrad),
    "Adafactor": lambda parameters: optim.Adafactor(parameters, weight_decay=0.1),
    "Adafactor foreach": foreach(optim.Adafactor),
    "Adadelta": optim.Adadelta,
    "Adadelta foreach": foreach(optim.Adadelta),
    "Adamax": optim.Adamax,
    "Adamax foreach": foreach(optim.Adamax),
    "NAdam": optim.NAdam,
    "NAdam foreach": foreach(optim.NAdam),
    "Rprop": optim.Rprop,
    "Rprop foreach": foreach(optim.Rprop),
    "RAdam": optim.RAdam,
    "RAdam foreach": foreach(optim.RAdam),
    "ASGD": optim.ASGD,
    "ASGD foreach": foreach(optim.ASGD),
}
if hasattr(optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda parameters: optim.Muon(matrices(parameters))


def setup(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, make(list(model.parameters()))


def train(make, step, steps=4):
    """Parameters and state after each of some steps."""
    model, optimizer = setup(make)
    states = []
    for _ in range(steps):
        model(X).pow(2).sum().backward()
        step(optimizer)
        states.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
        optimizer.zero_grad()
    return states


def step(optimizer):
    optimizer.step()


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, backend):
    counter = CompileCounterWithBackend(backend)
    compiled = bothways.compile(step, backend=counter, fullgraph=True)
    assert same(train(OPTIMIZERS[name], compiled), train(OPTIMIZERS[name], step))
    assert 1 <= counter.frame_count <= 2  # the first step makes the state


def test_lbfgs_breaks():
    def fit(step):
        model, optimizer = setup(optim.LBFGS)

        def closure():
            optimizer.zero_grad()
            loss = model(X).pow(2).sum()
            loss.backward()
            return loss

        return step(optimizer, closure), list(model.parameters())

    def step_with(optimizer, closure):
        return optimizer.step(closure)

    assert same(fit(bothways.compile(step_with, backend="eager")), fit(step_with))


def test_another_optimizer_of_the_same_kind_keeps_its_own_state():
    compiled = bothways.compile(step, backend="eager", fullgraph=True)
    assert same(train(optim.AdamW, compiled), train(optim.AdamW, compiled))


def test_a_scheduler_changes_the_learning_rate():
    def fit(step):
        model, optimizer = setup(lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9))
        scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(3):
            model(X).pow(2).sum().backward()
            step(optimizer)
            optimizer.zero_grad()
            scheduler.step()
        return list(model.parameters())

    assert same(fit(bothways.compile(step, backend="eager", fullgraph=True)), fit(step))


@pytest.mark.parametrize("make", [optim.Adam, optim.RMSprop, lambda parameters: optim.SGD(parameters, momentum=0.9)])
def test_the_step_that_makes_the_state_needs_no_program(make):
    counter = CompileCounterWithBackend("eager")
    compiled = bothways.compile(step, backend=counter)
    assert same(train(make, compiled), train(make, step))
    assert counter.frame_count == 1


def test_a_training_step_is_compiled_once():
    """Neither the gradients that are missing at first nor the state that is made need graphs of their own."""

    def training_step(model, optimizer):
        optimizer.zero_grad()
        loss = model(X).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss

    def fit(step):
        model, optimizer = setup(optim.Adam)
        return [step(model, optimizer).detach() for _ in range(4)], list(model.parameters())

    counter = CompileCounterWithBackend("eager")
    assert same(fit(bothways.compile(training_step, backend=counter)), fit(training_step))
    assert counter.frame_count == 1


def test_an_optimizer_made_inside_steps_in_the_graph():
    def program(weight, gradient):
        weight.grad = gradient
        optimizer = optim.Adam([weight], lr=0.1)
        optimizer.step()
        return weight * 1

    compiled = bothways.compile(program, backend="eager")
    results = [run(torch.ones(3, requires_grad=True), torch.arange(3.0)) for run in (program, compiled, compiled)]
    assert same(results[1], results[0]) and same(results[2], results[0])


def test_zero_grad_where_some_gradients_are_missing():
    def forget(optimizer):
        optimizer.zero_grad()

    compiled = bothways.compile(forget, backend="eager", fullgraph=True)
    for given in ((True, False), (False, True), (True, True), (False, False)):
        weights = [torch.ones(2, requires_grad=True) for _ in given]
        for weight, has in zip(weights, given, strict=True):
            weight.grad = torch.ones(2) if has else None
        compiled(optim.SGD(weights, lr=0.1))
        assert all(weight.grad is None for weight in weights)
    assert len(bothways.history(compiled)) == 1


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none):
    def update(optimizer):
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)

    def fit(update):
        model, optimizer = setup(optim.AdamW)
        for _ in range(3):
            model(X).pow(2).sum().backward()
            update(optimizer)
        return list(model.parameters()), [parameter.grad for parameter in model.parameters()]

    assert same(fit(bothways.compile(update, backend="eager", fullgraph=True)), fit(update))


def test_step_hooks_run():
    def fit(step):
        model, optimizer = setup(optim.SGD)
        seen = []
        optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: seen.append("before"))
        optimizer.register_step_post_hook(lambda optimizer, args, kwargs: seen.append("after"))
        model(X).sum().backward()
        step(optimizer)
        step(optimizer)
        return seen, list(model.parameters())

    assert same(fit(bothways.compile(step, backend="eager", fullgraph=True)), fit(step))


def test_parameters_without_gradients_are_left_alone():
    def fit(step):
        model, optimizer = setup(optim.AdamW)
        model[0].weight.requires_grad_(False)
        model(X).sum().backward()
        step(optimizer)
        model[0].weight.requires_grad_(True)
        model(X).sum().backward()
        step(optimizer)
        return list(model.parameters())

    assert same(fit(bothways.compile(step, backend="eager", fullgraph=True)), fit(step))


def test_the_grad_mode_is_kept():
    def update(optimizer, x):
        optimizer.step()
        return x * 2

    for enabled in (True, False):
        _, optimizer = setup(optim.SGD)
        x = torch.ones(2, requires_grad=True)
        with torch.set_grad_enabled(enabled):
            result = bothways.compile(update, backend="native", fullgraph=True)(optimizer, x)
            assert torch.is_grad_enabled() == enabled
        assert result.requires_grad == enabled


def test_a_state_that_was_loaded_is_used():
    def fit(step):
        model, optimizer = setup(optim.AdamW)
        model(X).sum().backward()
        step(optimizer)
        step(optimizer)
        saved = copy.deepcopy(optimizer.state_dict())
        step(optimizer)
        optimizer.load_state_dict(saved)
        step(optimizer)
        return list(model.parameters()), optimizer.state_dict()

    assert same(fit(bothways.compile(step, backend="eager", fullgraph=True)), fit(step))


def test_optimizers_that_pytorchs_compiler_has_seen(monkeypatch):
    import torch._dynamo.eval_frame as peer

    monkeypatch.setattr(optim.AdamW, "_init_group", peer.DisableContext()(optim.AdamW._init_group), raising=False)
    compiled = bothways.compile(step, backend="eager", fullgraph=True)
    assert same(train(optim.AdamW, compiled), train(optim.AdamW, step))


def test_a_captured_step_computes_in_pythons_precision():
    def trained(compiler):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(8, 8))
        optimizer = torch.optim.AdamW([weight], lr=0.1)
        step = compiler(optimizer.step)
        for _ in range(5):
            weight.grad = torch.randn(8, 8)
            step()
        return weight.detach()

    plain = trained(lambda function: function)
    captured = trained(lambda function: bothways.compile(function, backend="eager", fullgraph=True))
    assert torch.equal(plain, captured)
