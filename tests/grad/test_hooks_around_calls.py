"""Hooks that see what autograd saves, and anomaly mode, around calls that go backward inside: what was compiled without
them serves no such call in silence."""

import contextlib

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways

SEEN = []


def packed(tensor):
    SEEN.append(tuple(tensor.shape))
    return tensor


def by_backward(x):
    leaf = x.detach().clone().requires_grad_()
    (leaf**2).sin().sum().backward()
    return leaf.grad


def by_grad(x):
    leaf = x.detach().clone().requires_grad_()
    return torch.autograd.grad((leaf**2).sin().sum(), leaf)[0]


HOOKS = {
    "on the CPU": torch.autograd.graph.save_on_cpu,
    "of the user's": lambda: torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor),
    "that round": lambda: torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float),
}


@pytest.mark.parametrize("first", [True, False], ids=["from the first call on", "later"])
@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("program", [by_backward, by_grad])
@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_around_a_call_see_its_own_backward(program, hooks, first, backend):
    def observe(function, hooked):
        SEEN.clear()
        with HOOKS[hooks]() if hooked else contextlib.nullcontext():
            result = function(torch.linspace(0.1, 1.1, 12).view(3, 4))
        return {"result": result, "seen": list(SEEN)}

    with bothways.config.patch(kernels_for_small_graphs=True):
        agree(program, observe, *([True, True, False, True] if first else [False, True, True, False]), backend=backend)


def side_by_side(x, y):
    return (x.sin() * 2).exp(), (y.cos() * 3).exp()


def backward_first(x, y):
    (x.sin() * 2).exp().sum().backward()
    return (y.cos() * 3).exp()


@pytest.mark.parametrize("program", [side_by_side, backward_first])
@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_around_a_call_see_each_tensor_once(program, backend):
    def observe(function, hooked):
        SEEN.clear()
        x, y = torch.ones(3, requires_grad=True), torch.ones(4, requires_grad=True)
        with HOOKS["of the user's"]() if hooked else contextlib.nullcontext():
            function(x, y)
        return {"seen": list(SEEN)}

    with bothways.config.patch(kernels_for_small_graphs=True):
        agree(program, observe, True, True, False, True, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_around_a_training_step_see_it(backend):
    def observe(function, hooked):
        SEEN.clear()
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        with HOOKS["of the user's"]() if hooked else contextlib.nullcontext():
            loss = function(layer, optimizer, torch.ones(2, 4))
        return {"loss": loss, "weight": layer.weight.detach(), "seen": sorted(SEEN)}

    def step(layer, optimizer, x):
        optimizer.zero_grad()
        loss = layer(x).sin().square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with bothways.config.patch(kernels_for_small_graphs=True):
        agree(step, observe, False, False, True, True, backend=backend)


@pytest.mark.filterwarnings("ignore:Anomaly")
@pytest.mark.filterwarnings("ignore:Error detected")
@pytest.mark.parametrize("backend", BACKENDS)
def test_anomaly_mode_around_a_call_that_was_compiled_without_it(backend):
    def program(x):
        leaf = x.detach().clone().requires_grad_()
        (leaf.sqrt() * 0).sum().backward()
        return leaf.grad

    def observe(function, is_on):
        with torch.autograd.set_detect_anomaly(is_on):
            try:
                return {"result": function(torch.zeros(3))}
            except RuntimeError as error:
                return {"raised": str(error)}

    with bothways.config.patch(kernels_for_small_graphs=True):
        agree(program, observe, False, False, True, backend=backend)


TRANSFORMS = {
    "grad": lambda x: torch.func.grad(lambda t: t.pow(2).sum())(x),
    "vjp": lambda x: torch.func.vjp(lambda t: t.pow(2), x)[1](torch.ones_like(x))[0],
    "jacrev": lambda x: torch.func.jacrev(lambda t: t.pow(2))(x),
    "examples": lambda x: torch.func.vmap(torch.func.grad(lambda t: t.pow(2).sum()))(x),
    "jacfwd": lambda x: torch.func.jacfwd(lambda t: t.pow(2))(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("hooks", ["on the CPU", "of the user's"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_are_refused_under_hooks_also_later(transform, hooks, backend):
    def observe(function, hooked):
        try:
            with HOOKS[hooks]() if hooked else contextlib.nullcontext():
                return {"result": function(torch.ones(2, 3))}
        except RuntimeError as error:
            return {"raised": str(error)}

    agree(TRANSFORMS[transform], observe, False, True, False, True, backend=backend)


def measured(x, y):
    return (x * y.sin()).detach()


def changing_an_argument(x, y):
    error = ((x - y) ** 2).mean().detach()
    y.detach().mul_(0.5)
    return error


@pytest.mark.parametrize("first", [True, False], ids=["from the first call on", "later"])
@pytest.mark.parametrize("program", [measured, changing_an_argument])
@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_around_a_call_see_what_leads_to_no_result(program, first, backend):
    def observe(function, hooked):
        SEEN.clear()
        x, y = (torch.linspace(begin, 1, 6).requires_grad_() for begin in (0.1, 0.5))
        with HOOKS["of the user's"]() if hooked else contextlib.nullcontext():
            result = function(x, y)
        return {"result": result, "seen": list(SEEN), "changed": y.detach()}

    with bothways.config.patch(kernels_for_small_graphs=True):
        agree(program, observe, *([True, True, False, True] if first else [False, True, True, False]), backend=backend)
