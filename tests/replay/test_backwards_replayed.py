"""Models whose backward is called outside: two recordings, and nothing that either writes is seen too late."""

import copy

import pytest
import torch
import torch.nn.functional as F
from replaying import DEVICE, random, replays
from torch import nn

import bothways

pytestmark = pytest.mark.usefixtures("recorder")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x):
        return self.two(F.gelu(self.norm(self.one(x))))


def models():
    torch.manual_seed(0)
    plain = Model().to(DEVICE)
    ours = copy.deepcopy(plain)
    return plain, ours, bothways.compile(ours)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


def test_forward_and_backward_are_replayed():
    plain, ours, compiled = models()
    for _ in range(6):
        x = random(4, 8)
        for model, call in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            call(x).square().sum().backward()
        close(gradients(ours), gradients(plain))
    assert replays(compiled) == {"forward": 4, "backward": 4}


def test_gradients_add_up():
    plain, ours, compiled = models()
    for round in range(3):
        for _ in range(4):
            x = random(4, 8)
            for call in (plain, compiled):
                (call(x).square().sum() / 4).backward()
            close(gradients(ours), gradients(plain))
        for model in (plain, ours):
            model.zero_grad(set_to_none=bool(round % 2))
    assert replays(compiled)["backward"] >= 8


def test_gradients_that_are_held_never_change():
    _, ours, compiled = models()
    held = []
    for _ in range(6):
        ours.zero_grad()
        compiled(random(4, 8)).square().sum().backward()
        held.append([(gradient, gradient.clone()) for gradient in gradients(ours)])
    for pairs in held:
        for gradient, before in pairs:
            assert torch.equal(gradient, before)


@pytest.mark.parametrize("order", ["in order", "backwards"])
def test_two_forwards_before_their_backwards(order):
    plain, ours, compiled = models()
    for _ in range(7):
        inputs = [random(4, 8) for _ in range(3)]
        for model, call in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            losses = [call(x).square().sum() for x in inputs]
            for loss in losses if order == "in order" else reversed(losses):
                loss.backward()
        close(gradients(ours), gradients(plain))
    assert replays(compiled)["forward"] >= 5


def test_forwards_without_a_backward():
    plain, ours, compiled = models()
    held = []
    for call in range(9):
        x = random(4, 8)
        expected, found = plain(x), compiled(x)
        close(found, expected)
        if call % 3:
            held.append((found, expected))
            continue
        for model, result in ((plain, expected), (ours, found)):
            model.zero_grad()
            result.square().sum().backward()
        close(gradients(ours), gradients(plain))
    for found, expected in reversed(held):
        for model, result in ((plain, expected), (ours, found)):
            model.zero_grad()
            result.square().sum().backward()
        close(gradients(ours), gradients(plain))


def test_a_graph_that_is_retained():
    plain, ours, compiled = models()
    for _ in range(5):
        x = random(4, 8)
        for model, call in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            loss = call(x).square().sum()
            loss.backward(retain_graph=True)
            call(x)  # another one, while the first is still wanted
            loss.backward()
        close(gradients(ours), gradients(plain))


def test_calls_without_gradients_in_between():
    plain, ours, compiled = models()
    for _ in range(6):
        x, other = random(4, 8), random(4, 8)
        for model, call in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            loss = call(x).square().sum()
            with torch.no_grad():
                seen = call(other)
            loss.backward()
        with torch.no_grad():
            close(seen, plain(other))
        close(gradients(ours), gradients(plain))


def test_two_models_of_one_class_keep_apart():
    plain, ours, compiled = models()
    other = copy.deepcopy(plain)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1)
    theirs = copy.deepcopy(other)
    second = bothways.compile(theirs)
    for _ in range(6):
        x = random(4, 8)
        for model in (plain, ours, other, theirs):
            model.zero_grad()
        (plain(x) * other(x)).sum().backward()
        (compiled(x) * second(x)).sum().backward()
        close(gradients(ours), gradients(plain))
        close(gradients(theirs), gradients(other))


def test_double_backward():
    plain, ours, compiled = models()
    for _ in range(6):
        x = random(4, 8)
        found = []
        for model, call in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            inputs = x.clone().requires_grad_()
            [slope] = torch.autograd.grad(call(inputs).sum(), inputs, create_graph=True)
            slope.square().sum().backward()
            found.append((slope.detach(), gradients(model)))
        close(found[1][0], found[0][0])
        for one, other in zip(found[1][1], found[0][1], strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                close(one, other)


def test_hooks_that_raise_leave_nothing_behind():
    plain, ours, compiled = models()

    def refuse(gradient):
        raise ValueError("no")

    for call in range(8):
        x = random(4, 8)
        for model, run in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            result = run(x)
            if call % 3 == 2:
                result.register_hook(refuse)
                with pytest.raises(ValueError, match="no"):
                    result.sum().backward()
            else:
                result.square().sum().backward()
        if call % 3 != 2:
            close(gradients(ours), gradients(plain))


def test_an_input_that_is_changed_before_its_backward_is_still_an_error():
    def program(x, w):
        return torch.sin(x) * w + torch.cos(w * x)

    compiled = bothways.compile(program)
    for _ in range(5):
        x, w = random(4, 8, requires_grad=True), random(4, 8)
        result = compiled(x, w).sum()
        w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()


def test_inputs_want_gradients_too():
    plain, ours, compiled = models()
    for _ in range(6):
        x = random(4, 8)
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        plain(one).square().sum().backward()
        compiled(other).square().sum().backward()
        close(other.grad, one.grad)


def test_saved_tensors_on_the_cpu_and_checkpoints():
    plain, ours, compiled = models()
    for call in range(6):
        x = random(4, 8)
        for model, run in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            if call % 2:
                with torch.autograd.graph.save_on_cpu():
                    run(x).square().sum().backward()
            else:
                torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False).square().sum().backward()
        close(gradients(ours), gradients(plain))


def test_dropout_of_a_replayed_forward_and_its_backward():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 8)).to(DEVICE)
    ours = copy.deepcopy(plain)
    compiled = bothways.compile(ours)
    for call in range(6):
        x = random(4, 8)
        states = []
        for model, run in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            torch.manual_seed(call)
            run(x).square().sum().backward()
            states.append(torch.cuda.get_rng_state() if DEVICE == "cuda" else torch.get_rng_state())
        close(gradients(ours), gradients(plain))
        assert torch.equal(*states)
    assert replays(compiled)["forward"] == 4


def test_batch_norm_in_training_and_evaluation():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)
    ours = copy.deepcopy(plain)
    compiled = bothways.compile(ours)
    for call in range(10):
        x = random(6, 8)
        for model, run in ((plain, plain), (ours, compiled)):
            model.train(call % 4 != 3)
            model.zero_grad()
            run(x).square().sum().backward()
        close(gradients(ours), gradients(plain))
        close(list(ours.buffers()), list(plain.buffers()))


def test_statistics_that_are_replaced_are_written_where_they_are():
    """Operations write to them without giving them back."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16)).to(DEVICE, torch.float64)
    for _ in range(2):  # the second time programs come from the disk
        ours = copy.deepcopy(plain)
        expected = copy.deepcopy(plain)
        compiled = bothways.compile(ours)
        for call in range(14):
            x = random(6, 8).double()
            for model, run in ((expected, expected), (ours, compiled)):
                if call % 3 == 2:
                    state = {name: value.clone() for name, value in model.state_dict().items()}
                    model.load_state_dict(state, assign=True)
                model.zero_grad()
                run(x).square().sum().backward()
            close(gradients(ours), gradients(expected))
            close(list(ours.buffers()), list(expected.buffers()))
        bothways.reset()
