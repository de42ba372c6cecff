"""What runs in the middle of a call, a finalizer or another thread, may move what the call has looked at by then.

Here it runs at each function that the call calls, one after the other, but for the launch itself.
"""

import itertools
import sys

import fake_graphs
import pytest
import torch
from replaying import DEVICE, replays
from torch import nn

import bothways
from bothways.calls.call_library import word_library

pytestmark = [
    pytest.mark.skipif(word_library() is None, reason="no C compiler, or tensors of another form"),
    pytest.mark.skipif(DEVICE != "cpu", reason="numbers that change in between are set by functions of Python's"),
    pytest.mark.usefixtures("few_and_many", "recorder"),
]


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(DEVICE, torch.float64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        weight = self.weight = self.model[0].weight
        self.places = itertools.cycle([torch.empty_like(weight.data), weight.data])

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def move(self):
        """Have the weight lie elsewhere, at one of two places. Who reads or writes where it lay computes with NaN, or
        for nothing."""
        before = self.weight.data
        self.weight.data = next(self.places).copy_(before)
        before.fill_(float("nan"))


LAUNCH = fake_graphs.FakeRecorded.replay.__code__


def interrupted(call, x, number, interrupt):
    """The result of a call in the middle of which something runs: before the so-manieth function that it calls. And
    whether there were so many."""
    count, is_launching, is_done = itertools.count(), False, False

    def look(frame, event, _):
        nonlocal is_launching, is_done
        if frame.f_code is LAUNCH:
            is_launching = event == "call"
        elif not is_launching and event in ("call", "c_call") and next(count) == number:
            sys.setprofile(None)
            is_done = True
            interrupt()

    sys.setprofile(look)
    try:
        result = call(x)
    finally:
        sys.setprofile(None)
    return result, is_done


def compared(interrupt, check=lambda training: None):
    """A training that is interrupted once in each step, later from step to step, and one that is not."""
    plain, ours = Training(), Training()
    compiled = bothways.compile(ours.step)
    x = torch.ones(6, 8, device=DEVICE, dtype=torch.float64)
    for _ in range(12):  # both places are known by then
        torch.testing.assert_close(compiled(x), plain.step(x))
        ours.move()
    before = replays(compiled)["forward"]
    for number in range(400):
        result, was_interrupted = interrupted(compiled, x, number, lambda: interrupt(ours))
        torch.testing.assert_close(result, plain.step(x))
        torch.testing.assert_close(list(ours.model.parameters()), list(plain.model.parameters()))
        gradients = [[one.grad for one in training.model.parameters()] for training in (ours, plain)]
        torch.testing.assert_close(*gradients)
        versions = [[one._version for one in listed] for listed in gradients]
        assert versions[0] == versions[1]
        check(ours)
        del gradients
        if not was_interrupted:
            break
    assert not was_interrupted and number > 30
    assert replays(compiled)["forward"] > before + 0.6 * number


def test_a_weight_that_moves_in_the_middle_of_a_call_is_read_and_written_where_it_lies():
    compared(Training.move)


def test_a_gradient_that_is_taken_in_the_middle_of_a_call_stays_what_it_is():
    taken = []

    def take(training):
        gradient = training.weight.grad
        if gradient is not None:
            taken.append((gradient, gradient.clone()))

    def check(training):
        assert all(torch.equal(gradient, before) for gradient, before in taken)
        del taken[:-2]

    compared(take, check)


def test_memory_of_a_gradient_that_goes_in_the_middle_of_a_call_is_not_written():
    def resize(training):
        if training.weight.grad is not None and len(done) < 6:
            done.append(training.weight.grad.untyped_storage().resize_(4096))

    done = []
    plain, ours = Training(), Training()
    compiled = bothways.compile(ours.step)
    x = torch.ones(6, 8, device=DEVICE, dtype=torch.float64)
    for number in range(90):
        result, _ = interrupted(compiled, x, number * 3 % 70, lambda: resize(ours) if number > 12 else None)
        torch.testing.assert_close(result, plain.step(x))
        torch.testing.assert_close(list(ours.model.parameters()), list(plain.model.parameters()))
    assert len(done) == 6
