"""Whole training steps that are replayed: parameters, state and gradients are eager's, whatever happens in between."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from replaying import DEVICE, graphs, random, replays
from torch import nn

import bothways

pytestmark = pytest.mark.usefixtures("recorder")


class Training:
    """A model, its optimizer, and a step of both."""

    def __init__(self, optimizer=torch.optim.AdamW, dropout=0.0, **settings):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4)).to(DEVICE)
        self.optimizer = optimizer(self.model.parameters(), **{"lr": 1e-2, **settings})

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def state(self):
        state = [value for _, value in sorted(self.optimizer.state_dict()["state"].items())]
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return [*self.model.parameters()], gradients, state


def data(size=6):
    return random(size, 8), torch.randint(0, 4, (size,), device=DEVICE)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def run(both, steps, between=lambda training, step: None, sizes=(6,)):
    """The same steps plainly and compiled, compared one by one; what the steps gave."""
    plain, ours = both
    compiled = bothways.compile(ours.step)
    losses = []
    for step in range(steps):
        x, y = data(sizes[step * len(sizes) // steps])
        found = []
        for training, call in ((plain, plain.step), (ours, compiled)):
            torch.manual_seed(step)
            found.append(call(x, y))
            between(training, step)
        close(found[1], found[0])
        close(ours.state(), plain.state())
        losses.append(found)
    for theirs, own in losses:  # those of long ago, too
        close(own, theirs)
    return compiled


OPTIMIZERS = {
    "fused AdamW": (torch.optim.AdamW, {"fused": True}),
    "AdamW on lists": (torch.optim.AdamW, {"foreach": True, "capturable": DEVICE == "cuda"}),
    "SGD": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "fused SGD": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_replayed(name):
    kind, settings = OPTIMIZERS[name]
    compiled = run((Training(kind, **settings), Training(kind, **settings)), 8)
    assert replays(compiled).get("forward", 0) >= 4


def lies_in_a_recording(recorder, tensor):
    memories = [memory for record in recorder.records for memory in record._memory]
    return any(memory.untyped_storage()._cdata == tensor.untyped_storage()._cdata for memory in memories)


@pytest.mark.skipif(DEVICE == "cuda", reason="fake graphs tell which memory is theirs")
def test_gradients_that_are_let_go_are_lent_and_those_that_are_held_are_copies(recorder):
    held, where = [], []

    def look(training, step):
        gradient = training.model[0].weight.grad
        if training is ours:
            where.append(lies_in_a_recording(recorder, gradient))
        if step >= 6:
            held.append((step, gradient, gradient.clone()))

    plain, ours = Training(fused=True), Training(fused=True)
    run((plain, ours), 14, look)
    assert where[:2] == [False, False] and all(where[3:6]) and not any(where[9:])
    for _, gradient, before in held:
        assert torch.equal(gradient, before)


def test_learning_rates_that_change_are_seen_and_need_no_other_program():
    def warm_up(training, step):
        training.optimizer.param_groups[0]["lr"] = 1e-2 / (step + 2)

    compiled = run((Training(fused=True), Training(fused=True)), 8, warm_up)
    programs = [one for one in bothways.history(compiled) if one.program is not None]
    assert len(programs) <= 3


def test_a_learning_rate_that_changes_now_and_then():
    def decay(training, step):
        if step % 5 == 4:
            training.optimizer.param_groups[0]["lr"] *= 0.5

    compiled = run((Training(fused=True), Training(fused=True)), 16, decay)
    assert replays(compiled)["forward"] >= 4


def test_batches_of_other_sizes():
    compiled = run((Training(fused=True), Training(fused=True)), 15, sizes=(6, 10, 6))
    assert replays(compiled)["forward"] >= 4


def test_dropout_masks_are_eagers():
    run((Training(dropout=0.5, fused=True), Training(dropout=0.5, fused=True)), 8)


def test_checkpoints_that_are_loaded():
    kept = {}

    def save_and_load(training, step):
        if step == 4:
            kept[id(training)] = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict()))
        if step in (7, 12):
            model, optimizer = copy.deepcopy(kept[id(training)])
            training.model.load_state_dict(model, assign=step == 12)
            training.optimizer.load_state_dict(optimizer)

    run((Training(torch.optim.SGD, momentum=0.9), Training(torch.optim.SGD, momentum=0.9)), 16, save_and_load)


def test_evaluation_in_between():
    seen = []

    def evaluate(training, step):
        x = random(3, 8, seed=step)
        training.model.eval()
        with torch.no_grad():
            seen.append(training.model(x))
        training.model.train()

    run((Training(fused=True), Training(fused=True)), 8, evaluate)
    for plain, ours in zip(seen[::2], seen[1::2], strict=True):
        close(ours, plain)


def test_gradients_that_are_kept_stay_as_they_were():
    kept = []

    def keep(training, step):
        kept.append([parameter.grad for parameter in training.model.parameters()])
        kept.append([parameter.grad.clone() for parameter in training.model.parameters()])

    run((Training(fused=True), Training(fused=True)), 8, keep)
    for gradients, copies in zip(kept[::2], kept[1::2], strict=True):
        assert all(map(torch.equal, gradients, copies))


def test_gradients_of_several_steps_add_up():
    def accumulating(training):
        def step(x, y, last):
            loss = F.cross_entropy(training.model(x), y) / 3
            loss.backward()
            if last:
                training.optimizer.step()
                training.optimizer.zero_grad()
            return loss.detach()

        return step

    plain, ours = Training(fused=True), Training(fused=True)
    steps = accumulating(plain), bothways.compile(accumulating(ours))
    for number in range(15):
        x, y = data()
        found = [step(x, y, number % 3 == 2) for step in steps]
        close(found[1], found[0])
        for one, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
            close(one, other)
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                close(one.grad, other.grad)


def test_a_model_that_is_deleted_leaves_nothing():
    for _ in range(3):
        run((Training(fused=True), Training(fused=True)), 5)
    bothways.reset()
    gc.collect()
    assert bothways.memory() == []


def test_what_was_recorded_for_state_that_is_gone_is_let_go(recorder):
    def load(training, step):
        if step % 5 == 4:
            training.optimizer.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))

    compiled = run((Training(fused=True), Training(fused=True)), 30, load)
    assert replays(compiled)["forward"] >= 12
    assert sum(held.recordings for held in bothways.memory()) <= 2
    if recorder is not None:  # state is updated where it is, and not copied
        gradients = sum(parameter.nbytes for parameter in Training().model.parameters())
        assert sum(held.bytes for held in bothways.memory()) <= 2 * gradients + 1000


class Deep(Training):
    """Enough launches for a replay to pay off."""

    def __init__(self, **settings):
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())]
        self.model = nn.Sequential(nn.Linear(8, 16), *layers, nn.Linear(16, 4)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)


def test_by_default_a_schedule_is_replayed_at_every_step():
    both = Deep(), Deep()
    schedules = {one: torch.optim.lr_scheduler.CosineAnnealingLR(one.optimizer, 12) for one in both}
    with graphs("auto"):
        compiled = run(both, 14, lambda training, step: schedules[training].step())
        assert replays(compiled)["forward"] >= 9, [str(one) for one in bothways.history(compiled)]
