"""Every optimizer of PyTorch inside of a compiled training step: one graph, once its state is there."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch import nn, optim

import bothways

# Each optimizer with the options that change what its update computes.
OPTIONS = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True},
        {"lr": torch.tensor(0.1), "momentum": 0.9},
    ],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}, {"lr": torch.tensor(0.01)}],
    "AdamW": [{}, {"amsgrad": True, "maximize": True}],
    "NAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}],
    "RAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}],
    "Adamax": [{}, {"weight_decay": 0.1, "maximize": True}],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.1, "maximize": True, "initial_accumulator_value": 0.1}],
    "Adadelta": [{}, {"weight_decay": 0.1, "maximize": True}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "maximize": True}],
    "Rprop": [{}, {"maximize": True}],
    "ASGD": [{}, {"weight_decay": 0.1, "t0": 2, "maximize": True}],
    "Adafactor": [{}, {"weight_decay": 0.1, "maximize": True}],
    "Muon": [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}],
}
# One parameter after the other, all at once, or as one operation.
FORMS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def cases():
    for name, choices in OPTIONS.items():
        kind = getattr(optim, name, None)
        if kind is None:  # an older torch
            continue
        taken = inspect.signature(kind).parameters
        forms = {form: given for form, given in FORMS.items() if taken.keys() >= given.keys()} or {"": {}}
        for number, options in enumerate(choices):
            for form, given in forms.items():
                if form == "foreach" and isinstance(options.get("lr"), torch.Tensor):
                    continue  # which eager refuses on the CPU
                if form == "fused" and name == "Adagrad" and torch.empty(0).is_cuda:
                    continue  # which eager refuses on a GPU
                yield f"{name} {number} {form}", (kind, {**options, **given})


CASES = dict(cases())


def matrices(model):
    return [parameter for parameter in model.parameters() if parameter.dim() == 2]


def training(make_optimizer):
    def make():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = make_optimizer(model)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer}

    return make


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_the_second_step_is_the_last_that_is_captured(name, backend):
    kind, options = CASES[name]

    def make_optimizer(model):
        parameters = matrices(model) if kind.__name__ == "Muon" else model.parameters()
        given = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        return kind(parameters, **given)

    agree(training(make_optimizer), batches(), backend, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_of_parameters_have_their_own_options(backend):
    def make_optimizer(model):
        first, last = model[0].parameters(), model[2].parameters()
        return optim.SGD(
            [
                {"params": first, "lr": 0.1, "momentum": 0.9},
                {"params": last, "weight_decay": 0.1, "momentum": 0.5, "nesterov": True},
            ],
            lr=0.01,
        )

    agree(training(make_optimizer), batches(), backend, programs=1)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Rprop", "ASGD", "Adafactor", "RAdam", "NAdam", "Adagrad"])
def test_a_closure_computes_the_loss(name, backend):
    def make():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = getattr(optim, name)(model.parameters(), lr=0.05)

        def step(x, y):
            def closure():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return step, {"model": model, "optimizer": optimizer}

    agree(make, batches(), backend, programs=1)


def test_a_search_along_a_line_calls_its_closure_as_often_as_data_tells():
    """LBFGS asks the loss and the gradients how to go on, as plain Python; its closure is a graph."""

    def make():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

        def step(x, y):
            def closure():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return step, {"model": model, "optimizer": optimizer}

    agree(make, batches(3), "eager", tol=1e-3)


def test_sparse_gradients_break():
    def make():
        table = nn.Embedding(6, 3, sparse=True)
        optimizer = optim.SparseAdam(table.parameters(), lr=0.1)
        seen = []

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(table(y), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, {"table": [table.weight.detach()], "seen": seen}

    agree(make, batches(3), "eager", fullgraph=False)


def test_an_update_of_a_leaf_that_is_to_be_differentiated_is_refused():
    step, _ = training(lambda model: optim.SGD(model.parameters(), lr=0.1, differentiable=True))()
    compiled = bothways.compile(step, backend="eager", fullgraph=True)
    for batch in batches(2):
        with pytest.raises(RuntimeError, match="leaf Variable"):
            compiled(*batch)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_an_update_is_differentiated(kind, backend):
    """One step of an inner loop, whose learning rate has a gradient."""

    def make():
        rate = torch.tensor(0.1, requires_grad=True)
        outer = optim.SGD([rate], lr=0.01)
        start = torch.linspace(-1, 1, 6).reshape(2, 3)

        def step(x, y):
            outer.zero_grad()
            weight = start.clone().requires_grad_()
            loss = F.cross_entropy(x[:, :2] @ weight, y)
            (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
            moved = weight.clone()
            moved.grad = gradient
            inner = kind([moved], lr=rate, differentiable=True, foreach=False)  # a list takes no tensor for a rate
            inner.step()
            F.cross_entropy(x[:, :2] @ moved, y).backward()
            outer.step()
            return rate.detach().clone()

        return step, {"outer": outer}

    agree(make, batches(4), backend, fullgraph=False)
