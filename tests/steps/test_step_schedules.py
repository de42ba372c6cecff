"""Schedules of learning rates in and around compiled training steps: no program is made for a number."""

import math

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch import nn, optim
from torch.optim import lr_scheduler, swa_utils

import bothways

SCHEDULES = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 5], 0.5),
    "ConstantLR": lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.5, 3),
    "LinearLR": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5),
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "PolynomialLR": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 30, 2.0),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 8),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 3, mode="triangular2"),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30, cycle_momentum=False),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / 5)),
    "MultiplicativeLR": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.95),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(optimizer, 8)], [3]
    ),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5, 3), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
    "SWALR": lambda optimizer: swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=3),
}


class Numbers(dict):
    """What a schedule holds, as often as it is copied."""

    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def __deepcopy__(self, memo):
        return {
            name: list(value) if isinstance(value, list) else value
            for name, value in vars(self.schedule).items()
            if isinstance(value, (int, float)) or (isinstance(value, list) and name == "_last_lr")
        }


def training(make_schedule, after=lambda schedule, loss: schedule.step(), make_optimizer=None, inside=True):
    """``after`` is what a step does with its schedule, in the compiled function."""

    def make():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = (make_optimizer or (lambda p: optim.SGD(p, lr=0.1, momentum=0.9)))(model.parameters())
        schedule = make_schedule(optimizer)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach(), after(schedule, loss)

        return step, {"model": model, "optimizer": optimizer, "schedule": Numbers(schedule)}

    return make


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_steps_inside(name, backend):
    agree(training(SCHEDULES[name]), batches(12), backend, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_schedule_of_momentum_too(backend):
    make = training(
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30),
        make_optimizer=lambda parameters: optim.AdamW(parameters, lr=0.01),
    )
    agree(make, batches(20), backend, programs=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("told", [torch.Tensor.detach, torch.Tensor.item])
def test_a_schedule_is_told_the_loss(told, backend):
    """What it does is decided by data, when the graph has run."""
    make = training(
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
        lambda schedule, loss: schedule.step(told(loss)),
    )
    agree(make, batches(12), backend, programs=1)


def test_what_a_schedule_is_told_is_what_it_was_then():
    def tell(schedule, loss):
        metric = loss.detach() * 1
        schedule.step(metric)
        metric.add_(100)
        return metric

    make = training(lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1), tell)
    agree(make, batches(8), "aot_eager", programs=1)


def read_the_rate(schedule, loss):
    schedule.step()
    return schedule.get_last_lr()


def read_the_group(schedule, loss):
    schedule.step()
    return schedule.optimizer.param_groups[0]["lr"]


def read_the_count(schedule, loss):
    schedule.step()
    return schedule.last_epoch


def give_the_group(schedule, loss):
    schedule.step()
    schedule.optimizer.param_groups[0]["lr"] *= 0.9


def count_in_the_schedule(schedule, loss):
    schedule.step()
    schedule.seen = getattr(schedule, "seen", 0) + 1


def handle_its_errors(schedule, loss):
    try:
        schedule.step()
    except ValueError:
        return "over"


@pytest.mark.parametrize(
    "after",
    [read_the_rate, read_the_group, read_the_count, give_the_group, count_in_the_schedule, handle_its_errors],
)
@pytest.mark.parametrize("name", ["ExponentialLR", "StepLR", "SequentialLR"])
def test_what_a_schedule_leaves_behind_is_read_in_the_same_step(name, after):
    agree(training(SCHEDULES[name], after), batches(6), "eager")


def test_a_schedule_that_is_over_raises_in_the_step():
    make = training(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4), handle_its_errors)
    agree(make, batches(6), "eager")
    step, _ = training(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4))()
    compiled = bothways.compile(step, backend="eager", fullgraph=True)
    for batch in batches(3):
        compiled(*batch)
    with pytest.raises(ValueError, match="Tried to step 5 times"):
        for batch in batches(2):
            compiled(*batch)


def test_a_schedule_that_reads_the_users_state_is_looked_into():
    """What the state is when everything is done may be something else."""

    def make():
        step_count = {"n": 0}
        make_schedule = lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 ** step_count["n"])  # noqa: E731

        def after(schedule, loss):
            schedule.step()
            step_count["n"] += 1

        step, changed = training(make_schedule, after)()
        return step, {**changed, "count": step_count}

    agree(make, batches(6), "eager")


def test_a_schedule_that_reads_a_variable_that_changes_is_looked_into():
    def make():
        warmup = 2.0
        model = nn.Linear(6, 3)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        schedule = lr_scheduler.LambdaLR(optimizer, lambda epoch: warmup / (epoch + 1))

        def step(x, y):
            nonlocal warmup
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            warmup = warmup + 1.0

        return step, {"model": model, "optimizer": optimizer}

    agree(make, batches(6), "eager")


class Own(lr_scheduler.LRScheduler):
    def __init__(self, optimizer, log):
        self.log = log
        super().__init__(optimizer)

    def get_lr(self):
        self.log.append(self.last_epoch)
        return [group["lr"] * 0.9 for group in self.optimizer.param_groups]


def test_a_schedule_of_the_users_own_is_looked_into():
    def make():
        log = []

        def after(schedule, loss):
            schedule.step()
            log.append("after")

        step, changed = training(lambda optimizer: Own(optimizer, log), after)()
        return step, {**changed, "log": log}

    agree(make, batches(6), "eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_schedules_and_two_optimizers(backend):
    def make():
        models = [nn.Linear(6, 3), nn.Linear(6, 3)]
        optimizers = [optim.AdamW(models[0].parameters(), lr=0.1), optim.SGD(models[1].parameters(), lr=0.1)]
        schedules = [lr_scheduler.StepLR(optimizers[0], 2), lr_scheduler.CosineAnnealingLR(optimizers[1], 9)]

        def step(x, y):
            losses = []
            for model, optimizer, schedule in zip(models, optimizers, schedules, strict=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.detach())
            return losses

        names = ("first", "second")
        return step, {
            **dict(zip(names, models, strict=True)), "optimizers": [],
            **{f"{name} optimizer": optimizer for name, optimizer in zip(names, optimizers, strict=True)},
        }  # fmt: skip

    agree(make, batches(8), backend, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rate_that_is_given_is_an_input(backend):
    def make():
        model = nn.Linear(6, 3)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)

        def step(x, y, rate, scale):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer}

    given = [(x, y, 0.1 / (number + 1), 2.0 ** (number + 2)) for number, (x, y) in enumerate(batches(20))]
    agree(make, given, backend, programs=2)


def rate_at(count, warmup=4, last=16):
    """The schedule that many people write themselves."""
    if count < warmup:
        return 0.1 * (count + 1) / (warmup + 1)
    if count > last:
        return 0.01
    ratio = (count - warmup) / (last - warmup)
    return 0.01 + 0.5 * (1.0 + math.cos(math.pi * ratio)) * 0.09


def test_a_rate_that_is_computed_outside():
    def make():
        model = nn.Linear(6, 3)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        count = {"n": 0}

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        def with_rate(x, y):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(count["n"])
            count["n"] += 1
            return with_rate.step(x, y)

        with_rate.step = step
        return with_rate, {"model": model, "optimizer": optimizer}

    def compiled():
        run, changed = make()
        run.step = bothways.compile(run.step, backend="eager", fullgraph=True)
        return run, changed

    results = []
    for build in (make, compiled):
        torch.manual_seed(0)
        run, changed = build()
        for batch in batches(20):
            run(*batch)
        results.append((changed["model"].state_dict(), run.step))
    for name, value in results[0][0].items():
        torch.testing.assert_close(results[1][0][name], value)
    assert len([one for one in bothways.history(results[1][1]) if one.graphs]) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rate_that_is_a_power_of_a_counter(backend):
    def make():
        model = nn.Linear(6, 3)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        count = {"n": 1}

        def step(x, y):
            count["n"] += 1
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * 0.9 ** count["n"]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer, "count": count}

    agree(make, batches(20), backend, programs=1)
