"""Steps that say on their way for which tensors gradients are wanted, as GANs and fine-tuning do."""

import pytest
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch import nn, optim

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


def network():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def wanted(*models):
    return [parameter.requires_grad for model in models for parameter in model.parameters()]


def test_a_judge_is_frozen_while_the_maker_learns(backend):
    def make():
        maker, judge, flags = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)), []
        makers, judges = optim.SGD(maker.parameters(), lr=0.1), optim.Adam(judge.parameters(), lr=0.01, eps=1e-4)

        def step(x, y):
            for parameter in judge.parameters():
                parameter.requires_grad_(True)
            judges.zero_grad()
            made = maker(x)
            loss = F.softplus(judge(made.detach())).mean() + F.softplus(-judge(x)).mean()
            loss.backward()
            judges.step()
            for parameter in judge.parameters():
                parameter.requires_grad = False
            makers.zero_grad()
            other = F.softplus(-judge(made)).mean()
            other.backward()
            makers.step()
            flags.append(wanted(maker, judge))
            return loss.detach(), other.detach()

        return step, {"maker": maker, "judge": judge, "makers": makers, "judges": judges, "flags": flags}

    agree(make, batches(), backend)


def test_gradients_are_wanted_and_unwanted_inside(backend):
    def make():
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=0.1, eps=1e-3)

        def step(x, y):
            optimizer.zero_grad()
            model[0].requires_grad_(False)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            model[0].requires_grad_(True)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step, {"model": model, "optimizer": optimizer}

    agree(make, batches(), backend, programs=1)


def test_a_leaf_that_is_frozen_before_the_backward_gets_no_gradient(backend):
    def make():
        model, flags = network(), []
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            first = F.cross_entropy(model(x), y)
            model[0].requires_grad_(False)
            (first + F.cross_entropy(model(2 * x), y)).backward()
            flags.append(wanted(model))
            model[0].requires_grad_(True)
            optimizer.step()
            return first.detach()

        return step, {"model": model, "optimizer": optimizer, "flags": flags}

    agree(make, batches(), backend, programs=1)


def test_what_is_frozen_at_the_end_stays_frozen(backend):
    def make():
        model = network()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        count = []

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            model[0].requires_grad_(len(count) % 4 < 2)
            return loss, model(x)

        def counting(x, y):
            count.append(1)
            return step(x, y)

        return counting, {"model": model, "optimizer": optimizer}

    agree(make, batches(8), backend, fullgraph=False)


def test_the_gradient_of_a_batch_is_wanted_after_its_first_use(backend):
    def make():
        model, seen = network(), []

        def step(x, y):
            model.zero_grad()
            before = model(x)
            x.requires_grad_()
            F.cross_entropy(model(x) + before, y).backward()
            seen.append(x.requires_grad)
            return x.grad

        return step, {"model": model, "seen": seen}

    agree(make, batches(), backend)
