"""Mixed precision with a ``GradScaler``: gradients that are no numbers leave a step out, and the graph is one."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch import nn, optim

import bothways
from bothways.errors import Unsupported

OPTIMIZERS = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1),
    "SGD nesterov": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=0.01),
    "Adam amsgrad": lambda parameters: optim.Adam(parameters, lr=0.01, amsgrad=True, foreach=True),
    "AdamW fused": lambda parameters: optim.AdamW(parameters, lr=0.01, fused=True),
    "NAdam": lambda parameters: optim.NAdam(parameters, lr=0.01),
    "Rprop": lambda parameters: optim.Rprop(parameters, lr=0.01),
    "Adafactor": lambda parameters: optim.Adafactor(parameters, lr=0.01),
    "ASGD": lambda parameters: optim.ASGD(parameters, lr=0.01),
}


class Kept(dict):
    """The state of something that is no optimizer, as often as it is copied."""

    def __init__(self, owner):
        super().__init__()
        self.owner = owner

    def __deepcopy__(self, memo):
        return self.owner.state_dict()


def some_infinite(count=8):
    """Batches of which two have gradients that are no numbers."""
    given = batches(count)
    given[3] = (given[3][0] * float("inf"), given[3][1])
    given[6] = (given[6][0] * float("nan"), given[6][1])
    return given


def training(make_optimizer, dtype=torch.bfloat16, clips=True, schedule=None, **options):
    def make():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = make_optimizer(model.parameters())
        scheduler = schedule(optimizer) if schedule else None
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, **options)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if scheduler is not None:
                scheduler.step()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer, "scaler": Kept(scaler)}

    return make


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("clips", [True, False], ids=["clipped", "as they are"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_left_out_where_gradients_are_infinite(name, clips, backend):
    agree(training(OPTIMIZERS[name], clips=clips), some_infinite(), backend, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_halves_overflow_by_themselves(backend):
    make = training(OPTIMIZERS["AdamW"], torch.float16)
    given = [(x * 1e4 if number == 4 else x, y) for number, (x, y) in enumerate(batches(7))]
    agree(make, given, backend, programs=1, tol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scaler_that_is_off_is_not_there(backend):
    agree(training(OPTIMIZERS["AdamW"], enabled=False, clips=False), batches(), backend, programs=1)


def test_the_first_step_may_be_left_out():
    """Nothing is known of an optimizer's state then, and the next step makes it."""
    given = batches(5)
    given[0] = (given[0][0] * float("nan"), given[0][1])
    agree(training(OPTIMIZERS["AdamW"]), given, "eager", programs=1)


def test_a_schedule_watches_whether_a_step_was_made():
    given = batches(5)
    given[0] = (given[0][0] * float("nan"), given[0][1])
    make = training(OPTIMIZERS["SGD"], schedule=lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 2))
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        agree(make, given, "eager")


def test_hooks_of_an_optimizer_run_only_when_a_step_is_made():
    """They are the user's, so whether they run cannot be chosen afterwards: the step breaks at that question."""

    def make():
        step, changed = training(OPTIMIZERS["AdamW"])()
        seen = []
        changed["optimizer"].register_step_post_hook(lambda *_: seen.append(len(seen)))
        return step, {**changed, "seen": seen}

    agree(make, some_infinite(), "eager", fullgraph=False)
    step, _ = make()
    compiled = bothways.compile(step, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported, match="item"):
        for batch in batches(3):
            compiled(*batch)
