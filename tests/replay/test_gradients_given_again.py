"""Gradients that a replayed step lets go of are given again as the same tensors, where nobody could tell."""

import gc
import weakref

import pytest
import torch
from replaying import DEVICE, replays
from torch import nn

import bothways
from bothways.calls import call_library
from bothways.calls.call_library import word_library
from bothways.capture.program import groups

pytestmark = [
    pytest.mark.skipif(word_library() is None, reason="no C compiler, or tensors of another form"),
    pytest.mark.usefixtures("few_and_many", "recorder"),
]


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    @property
    def gradients(self):
        return [parameter.grad for parameter in self.model.parameters()]


def compared(between, steps=14):
    """Both ways, step by step; ``between`` is told of each. The compiled training, and the addresses of gradients."""
    plain, ours = Training(), Training()
    compiled = bothways.compile(ours.step)
    x, seen = torch.ones(6, 8, device=DEVICE), []
    for turn in range(steps):
        found = [plain.step(x), compiled(x)]
        torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(ours.gradients, plain.gradients, rtol=1e-3, atol=1e-5)
        assert [one._version for one in ours.gradients] == [one._version for one in plain.gradients]
        assert [vars(one) for one in ours.gradients] == [vars(one) for one in plain.gradients]
        assert [one.requires_grad for one in ours.gradients] == [one.requires_grad for one in plain.gradients]
        seen.append([id(one) for one in ours.gradients])
        for training in (plain, ours):
            between(training, turn)
    torch.testing.assert_close(list(ours.model.parameters()), list(plain.model.parameters()), rtol=1e-3, atol=1e-5)
    assert replays(compiled)["forward"] >= 4
    return ours, seen


def test_the_same_tensors_are_given_again():
    _, seen = compared(lambda training, turn: None)
    assert seen[-1] == seen[-2] == seen[-3]



def test_gradients_that_are_held_stay_what_they_are():
    held = []

    def keep(training, turn):
        if turn >= 8:
            held.append((training.gradients[1], training.gradients[1].clone()))

    compared(keep)
    assert all(torch.equal(gradient, before) for gradient, before in held)


def test_what_refers_to_a_gradient_weakly_finds_it_gone():
    references = []

    def refer(training, turn):
        if references:
            assert references[-1][1] is not training or references[-1][0]() is None
        gc.collect()
        if turn in (8, 10):
            references.append((weakref.ref(training.gradients[0]), training))

    plain_and_ours = []
    compared(lambda training, turn: (plain_and_ours.append(training), refer(training, turn)))
    gc.collect()
    assert all(reference() is None for reference, _ in references)


def test_a_gradient_that_is_let_go_outside_is_gone_at_once():
    ours, _ = compared(lambda training, turn: None)
    reference = weakref.ref(ours.gradients[0])
    ours.optimizer.zero_grad()
    assert reference() is None


def of_its_own(training, turn):
    training.gradients[0].note = turn


def written(training, turn):
    training.gradients[0].mul_(2)
    training.gradients[2].zero_()


def turned(training, turn):
    training.model[0].weight.grad.requires_grad_()


def cleared(training, turn):
    training.optimizer.zero_grad()


def replaced(training, turn):
    training.model[0].weight.grad = torch.ones_like(training.model[0].weight)


def swapped(training, turn):
    training.model[0].weight.grad.data = torch.ones_like(training.model[0].weight)


def exchanged(training, turn):
    weight, other = training.model[0].weight, training.model[2].bias
    weight.grad, other.grad = None, None


def shrunk(training, turn):
    training.model[0].weight.grad.t_()


def hooked(training, turn):
    training.model[0].weight.grad._backward_hooks = {}


@pytest.mark.parametrize(
    "change", [of_its_own, written, turned, cleared, replaced, swapped, exchanged, shrunk, hooked]
)
def test_what_is_done_to_gradients_between_steps_is_not_seen_later(change):
    compared(lambda training, turn: change(training, turn) if turn in (7, 8, 11) else None, 15)


def test_who_is_told_of_a_gradient_that_goes_may_move_a_parameter():
    """It is let go once inputs were looked at: they are looked at again."""
    watching = []

    def watch(training, turn):
        weight = training.model[0].weight

        def move(reference):
            weight.data = weight.data.clone() * 2

        if turn in (8, 9, 12):
            watching.append(weakref.ref(weight.grad, move))

    compared(watch, 15)
    assert all(reference() is None for reference in watching[:4])


def test_without_a_compiler_steps_are_replayed_the_slow_way(monkeypatch):
    monkeypatch.setattr(call_library, "_found", [None])
    compared(lambda training, turn: None)


def test_sizes_of_many_dimensions_that_were_changed():
    """They lie outside of what is compared of a tensor."""

    class Wide(Training):
        def __init__(self):
            super().__init__()
            self.model.wide = nn.Parameter(torch.randn(2, 2, 2, 2, 2, 2, device=DEVICE).transpose(0, 5))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)

        def step(self, x):
            self.optimizer.zero_grad()
            factors = torch.arange(64.0, device=DEVICE).view(2, 2, 2, 2, 2, 2)
            loss = self.model[:3](x).square().mean() + (self.model.wide * factors).sin().sum()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            return loss.detach()

    seen = []
    for compiles in (False, True):
        training = Wide()
        step = bothways.compile(training.step) if compiles else training.step
        for number in range(12):
            step(torch.ones(3, 8, device=DEVICE))
            if number > 6:
                training.model.wide.grad.transpose_(1, 3)
        seen.append((training.model.wide.grad.stride(), training.model.wide.detach().clone()))
    assert seen[0][0] == seen[1][0]
    torch.testing.assert_close(seen[0][1], seen[1][1])


def test_what_is_handed_out_was_never_changed():
    compiled = bothways.compile(lambda x: (x.sin() * 2, (x * 2).long() + 1))
    for _ in range(6):
        assert [result._version for result in compiled(torch.ones(5, device=DEVICE))] == [0, 0]


@pytest.mark.parametrize("layers", [2, 12], ids=["few gradients", "many gradients"])
def test_a_parameter_that_moves_when_a_gradient_goes_is_written_where_it_lies(layers, monkeypatch):
    """What ends with a gradient runs after guards were checked, and before inputs are looked at."""
    monkeypatch.setattr(groups, "FROM", 4)

    class Moving:
        def __init__(self):
            torch.manual_seed(0)
            self.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))).to(DEVICE)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)

        def step(self, x):
            self.optimizer.zero_grad()
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        def move(self):
            self.old = self.model[0].weight.data
            self.model[0].weight.data = self.old.clone()
            self.old.fill_(float("nan"))

    plain, ours = Moving(), Moving()
    compiled, x = bothways.compile(ours.step), torch.ones(3, 4, device=DEVICE)
    for turn in range(20):
        for training in (plain, ours):
            if turn > 8 and turn % 3 == 0:
                gradient = training.model[0].weight.grad
                gradient.note = note = type("Note", (), {})()
                weakref.finalize(note, training.move)
                del gradient, note
        torch.testing.assert_close(compiled(x), plain.step(x), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(
            list(ours.model.parameters()), list(plain.model.parameters()), rtol=1e-3, atol=1e-5
        )
