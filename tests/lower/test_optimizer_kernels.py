"""Every optimizer's ``step()`` becomes kernels that write into the parameters, and is compiled once."""

import copy
import re

import pytest
import torch
from torch import nn, optim

import bothways
from bothways.testing import difference

OPTIMIZERS = {
    "SGD": lambda parameters, **how: optim.SGD(parameters, lr=0.1, **how),
    "SGD with momentum": lambda parameters, **how: optim.SGD(parameters, lr=0.1, momentum=0.9, **how),
    "SGD with all": lambda parameters, **how: optim.SGD(
        parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True, **how
    ),
    "Adam": optim.Adam,
    "Adam with all": lambda parameters, **how: optim.Adam(
        parameters, amsgrad=True, weight_decay=0.1, maximize=True, **how
    ),
    "AdamW": optim.AdamW,
    "AdamW amsgrad": lambda parameters, **how: optim.AdamW(parameters, amsgrad=True, **how),
    "RAdam": optim.RAdam,
    "RAdam with decay": lambda parameters, **how: optim.RAdam(
        parameters, weight_decay=0.1, decoupled_weight_decay=True, **how
    ),
    "NAdam": optim.NAdam,
    "Adamax": optim.Adamax,
    "Adagrad": lambda parameters, **how: optim.Adagrad(parameters, lr_decay=0.1, **how),
    "Adadelta": optim.Adadelta,
    "RMSprop": lambda parameters, **how: optim.RMSprop(parameters, momentum=0.9, centered=True, **how),
    "ASGD": lambda parameters, **how: optim.ASGD(parameters, t0=2, weight_decay=0.1, **how),
    "Rprop": optim.Rprop,
    "Adafactor": optim.Adafactor,
}
FUSED = [name for name in OPTIMIZERS if name.startswith(("SGD", "Adam", "Adagrad")) and name != "Adamax"]
WAYS = [
    *((name, way) for name in OPTIMIZERS for way in ("foreach", "one by one")),
    *((name, "fused") for name in FUSED),
]
HOW = {"foreach": {"foreach": True}, "one by one": {"foreach": False}, "fused": {"fused": True}}
COUNT = 3


def parameters(count=COUNT, elements=300):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(elements)) for _ in range(count)]


def states(optimizer, step, steps=5):
    """Parameters and state after each step."""
    found = []
    weights = optimizer.param_groups[0]["params"]
    for number in range(steps):
        for index, weight in enumerate(weights):
            weight.grad = torch.sin(torch.arange(float(len(weight))) * (index + 1) + number)
        step()
        found.append(copy.deepcopy(([weight.detach() for weight in weights], optimizer.state_dict()["state"])))
    return found


def both(make, how, backend="native"):
    """States by eager and compiled, and the compiled function."""
    eager, ours = make(parameters(), **how), make(parameters(), **how)
    compiled = bothways.compile(lambda: ours.step(), backend=backend, fullgraph=True)
    return states(eager, eager.step), states(ours, compiled), compiled


def kernels_of(compiled):
    """How many C kernels there are, how often they are called, and the Python around them."""
    generated = bothways.explain(compiled).generated[-1]  # fused ones check devices in their first step
    text = generated.texts["C"]
    calls = re.findall(r"^    (kernel_\d+)", text, re.MULTILINE)
    return len(set(calls)), len(calls), generated.texts["Python"]


@pytest.mark.parametrize("name, way", WAYS)
def test_a_step_is_kernels_and_nothing_else(name, way):
    expected, found, compiled = both(OPTIMIZERS[name], HOW[way])
    assert difference(expected, found, tol=1e-6) is None
    assert len(bothways.history(compiled)) <= 2  # the first step makes the state
    different, calls, python = kernels_of(compiled)
    assert different <= 4  # one text serves all parameters of one size
    assert calls == different * COUNT
    assert "aten" not in python


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name, way", WAYS)
def test_a_step_without_kernels_is_the_same(name, way, backend):
    expected, found, compiled = both(OPTIMIZERS[name], HOW[way], backend)
    assert difference(expected, found, tol=1e-6) is None
    assert len(bothways.history(compiled)) <= 2


def test_matrices_by_their_rows_and_columns():
    def weights():
        torch.manual_seed(0)
        made = [nn.Parameter(torch.randn(8, 12)) for _ in range(3)]
        for weight in made:
            weight.grad = torch.randn(8, 12)
        return made

    kinds = [optim.Adafactor] + ([optim.Muon] if hasattr(optim, "Muon") else [])
    for kind in kinds:
        bothways.reset()
        eager, ours = kind(weights()), kind(weights())
        compiled = bothways.compile(lambda ours=ours: ours.step(), fullgraph=True)
        for _ in range(4):
            eager.step()
            compiled()
        pairs = zip(eager.param_groups[0]["params"], ours.param_groups[0]["params"], strict=True)
        assert all(torch.allclose(left, right, atol=1e-5) for left, right in pairs)
        assert len(bothways.history(compiled)) == 2


def test_what_is_updated_stays_what_it_is():
    weights = parameters()
    optimizer = optim.Adam(weights)
    compiled = bothways.compile(lambda: optimizer.step(), fullgraph=True)
    gradients = [torch.ones_like(weight) for weight in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    memory = [weight.data_ptr() for weight in weights]
    for _ in range(3):
        versions = [weight._version for weight in weights]
        compiled()
        assert all(weight._version > version for weight, version in zip(weights, versions, strict=True))
    assert all(weight.requires_grad and weight.is_leaf and weight.grad_fn is None for weight in weights)
    assert [weight.data_ptr() for weight in weights] == memory
    assert all(weight.grad is gradient for weight, gradient in zip(weights, gradients, strict=True))


def test_a_forward_before_the_step_cannot_go_back_after_it():
    """What autograd has saved was changed by the step, and autograd is told."""
    weight = nn.Parameter(torch.ones(300))
    weight.grad = torch.ones(300)
    optimizer = optim.SGD([weight, nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    compiled = bothways.compile(lambda: optimizer.step(), fullgraph=True)
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled()
        compiled()
        loss = (weight * weight).sum()
        compiled()
    assert bothways.explain(compiled).generated
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_that_share_memory_see_each_others_updates():
    def made():
        base = torch.linspace(0, 1, 600)
        weights = [nn.Parameter(base[:400]), nn.Parameter(base[200:])]
        for weight in weights:
            weight.grad = torch.ones(400)
        return base, optim.SGD(weights, lr=0.1, momentum=0.9)

    (expected, eager), (found, ours) = made(), made()
    compiled = bothways.compile(lambda: ours.step(), fullgraph=True)
    for _ in range(3):
        eager.step()
        compiled()
    assert torch.equal(expected, found)


def test_a_learning_rate_that_changes_is_an_input_of_the_second_program():
    eager, ours = (optim.AdamW(parameters(), lr=0.1) for _ in range(2))
    compiled = bothways.compile(lambda: ours.step(), fullgraph=True)
    sides = []
    for optimizer, step in ((eager, eager.step), (ours, compiled)):

        def with_less(optimizer=optimizer, step=step):
            optimizer.param_groups[0]["lr"] *= 0.9
            step()

        sides.append(states(optimizer, with_less, steps=8))
    assert difference(*sides, tol=1e-6) is None
    assert len(bothways.history(compiled)) <= 3


@pytest.mark.parametrize("way", HOW)
def test_parameters_of_different_sizes_are_no_change_of_size(way):
    """What an optimizer keeps of each parameter reads alike for all of them, and is not one tensor that changes."""

    def weights():
        torch.manual_seed(0)
        return [nn.Parameter(torch.randn(4, 5 + index)) for index in range(4)]

    eager, ours = optim.AdamW(weights(), **HOW[way]), optim.AdamW(weights(), **HOW[way])
    compiled = bothways.compile(lambda: ours.step(), backend="native", fullgraph=True)
    for number in range(4):
        for left, right in zip(eager.param_groups[0]["params"], ours.param_groups[0]["params"], strict=True):
            left.grad = torch.full_like(left, number + 1.0)
            right.grad = left.grad.clone()
        eager.step()
        compiled()
    pairs = zip(eager.param_groups[0]["params"], ours.param_groups[0]["params"], strict=True)
    assert all(torch.allclose(left, right, atol=1e-6) for left, right in pairs)
    assert len(bothways.history(compiled)) == 2
    assert not re.search(r"\[[^\]]*s\d", str(bothways.history(compiled)[-1].graphs[0]))


def test_kernels_of_1x1_lie_as_their_gradients_do():
    """Along what has one element steps tell nothing: such a weight, whose gradient has channels last, is updated."""

    def step(weight, grad):
        with torch.no_grad():
            weight.lerp_(grad, 0.1)

    weight = torch.empty_strided((64, 32, 1, 1), (32, 1, 32, 32)).normal_()
    grad = torch.randn(64, 32, 1, 1)
    assert weight.stride() != grad.stride()
    expected = torch.lerp(weight, grad, 0.1)
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(step, backend="native")
        compiled(weight, grad)
    torch.testing.assert_close(weight, expected)
    assert weight.stride() == (32, 1, 32, 32)
    [piece] = bothways.history(compiled)[-1].outcome.pieces
    assert piece.kernels == 1
