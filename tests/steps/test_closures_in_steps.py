"""Optimizers that are given a closure and call it as often as losses and gradients tell: the closure is one graph, the
optimizer is PyTorch's, and that is no break to ``fullgraph=True``."""

import pytest
import torch
import torch.nn.functional as F
from seeding import seeded
from stepping import BACKENDS, agree
from torch import nn, optim

import bothways
from bothways.errors import Unsupported

everywhere = pytest.mark.parametrize("backend", BACKENDS)


def batches():
    generator = seeded(1)
    inputs = [torch.randn(20, 6, dtype=torch.double, generator=generator) for _ in range(6)]
    return [(x, x.sum(1, keepdim=True).tanh()) for x in inputs]


def network():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def made_inside(**options):
    model, log = network(), []
    optimizer = optim.LBFGS(model.parameters(), lr=0.3, max_iter=4, **options)
    model[0].weight.register_hook(lambda grad: log.append("hook"))

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            log.append("closure")
            return loss

        return optimizer.step(closure).detach() * 2

    return step, {"model": model, "optimizer": optimizer, "log": log}


def strongly_searched():
    return made_inside(line_search_fn="strong_wolfe")


def passed_by_name():
    model = network()
    optimizer = optim.LBFGS(model.parameters(), lr=0.3, max_iter=3)

    def step(x, y):
        total = 0.0

        def closure(scale=0.5):
            nonlocal total
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y) * scale
            loss.backward()
            total += loss.item()
            return loss

        optimizer.step(closure=closure)
        return total

    return step, {"model": model, "optimizer": optimizer}


class Fitting:
    def __init__(self):
        self.model, self.calls = network(), 0
        self.optimizer = optim.LBFGS(self.model.parameters(), lr=0.3, max_iter=3)

    def closure(self):
        self.calls += 1
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(self.x), self.y)
        loss.backward()
        return loss

    def step(self, x, y):
        self.x, self.y = x, y
        return self.optimizer.step(self.closure).detach(), self.calls


def of_a_method():
    fitting = Fitting()
    return fitting.step, {"model": fitting.model, "optimizer": fitting.optimizer}


def beside_another_optimizer():
    """What comes before and behind is captured, too."""
    model, head = network(), nn.Linear(1, 1).double()
    slow, fast = optim.LBFGS(model.parameters(), lr=0.3, max_iter=3), optim.SGD(head.parameters(), lr=0.1)

    def step(x, y):
        fast.zero_grad()
        F.mse_loss(head(model(x).detach()), y).backward()
        fast.step()

        def closure():
            slow.zero_grad()
            loss = F.mse_loss(head(model(x)), y)
            loss.backward(inputs=list(model.parameters()))
            return loss

        loss = slow.step(closure)
        with torch.no_grad():
            return loss.detach(), head(model(x)).mean()

    return step, {"model": model, "head": head, "slow": slow, "fast": fast}


PROGRAMS = [made_inside, strongly_searched, passed_by_name, of_a_method, beside_another_optimizer]


@everywhere
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_steps_are_those_of_eager(program, backend):
    agree(program, batches(), backend)


@everywhere
def test_the_closure_is_one_graph_however_often_it_is_called(backend):
    step, _ = made_inside()
    compiled = bothways.compile(step, backend=backend, fullgraph=True)
    for x, y in batches():
        compiled(x, y)
    closures = [one for one in bothways.history(compiled) if one.outcome and "closure" in one.outcome.function]
    assert len(closures) == 1 and not closures[0].breaks
    assert [found.code for one in bothways.history(compiled) for found in one.breaks] == ["closure"]


def test_a_break_in_the_closure_is_an_error():
    model = network()
    optimizer = optim.LBFGS(model.parameters())

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            bothways.graph_break()
            loss.backward()
            return loss

        return optimizer.step(closure)

    with pytest.raises(Unsupported, match="graph_break"):
        bothways.compile(step, backend="eager", fullgraph=True)(*batches()[0])
