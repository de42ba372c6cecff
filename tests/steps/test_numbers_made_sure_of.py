"""Steps that make sure of a loss or a norm, as training loops do: whether it is finite, or raise where it is not as it
should be. They are one graph; where the answer is the other one, what was changed is put back and plain Python runs."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from seeding import seeded
from stepping import BACKENDS, agree
from torch import nn, optim

import bothways
from bothways.errors import Unsupported
from bothways.testing import difference

everywhere = pytest.mark.parametrize("backend", BACKENDS)


def batches(bad=3):
    """Six batches; the one at ``bad`` has a NaN in it."""
    generator = seeded(1)
    found = [(torch.randn(8, 6, dtype=torch.double, generator=generator),) for _ in range(6)]
    if bad is not None:
        found[bad][0][2, 1] = math.nan
    return found


def training(body):
    """A step whose middle is ``body(model, optimizer, log, loss)``."""

    def make():
        model, log = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double(), []
        optimizer = optim.AdamW(model.parameters(), lr=0.05)

        def step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            return body(model, optimizer, log, loss)

        return step, {"model": model, "optimizer": optimizer, "log": log}

    return make


def left_out(model, optimizer, log, loss):
    if not torch.isfinite(loss):
        log.append("left out")
        return None
    loss.backward()
    optimizer.step()
    return loss.detach()


def either_kind(model, optimizer, log, loss):
    if torch.isnan(loss) or torch.isinf(loss):
        log.append("left out")
        return None
    loss.backward()
    optimizer.step()
    return loss.detach()


def by_number(model, optimizer, log, loss):
    value = loss.item()
    loss.backward()
    if not math.isfinite(value):
        log.append(str(value))
        optimizer.zero_grad()
        return value
    optimizer.step()
    return value


def gradients_mended(model, optimizer, log, loss):
    loss.backward()
    for p in model.parameters():
        if torch.isnan(p.grad).any():
            log.append("mended")
            p.grad.zero_()
    optimizer.step()
    return loss.detach()


def after_the_update(model, optimizer, log, loss):
    """What was updated by then is put back before plain Python runs."""
    loss.backward()
    optimizer.step()
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        log.append("broken")
        with torch.no_grad():
            for p in model.parameters():
                p.nan_to_num_(0.1)
    return loss.detach()


def perplexity(model, optimizer, log, loss):
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    log.append(math.exp(loss.item()))
    return math.log(loss.item()), math.sqrt(loss.item()), math.isnan(loss.item()), loss.item() < 2.0


SKIPPING = [left_out, either_kind, by_number, gradients_mended, after_the_update, perplexity]


@everywhere
@pytest.mark.parametrize("body", SKIPPING, ids=lambda body: body.__name__)
def test_one_graph_where_numbers_are_finite(body, backend):
    agree(training(body), batches(bad=None), backend, programs=1)


def raises(model, optimizer, log, loss):
    if not torch.isfinite(loss):
        raise ValueError(f"loss is {loss.item()}")
    loss.backward()
    optimizer.step()
    return loss.detach()


def raises_by_number(model, optimizer, log, loss):
    log.append("seen")
    if loss.item() > 1e4 or math.isnan(loss.item()):
        log.append("stops")
        raise FloatingPointError("the loss has gone away", loss.item())
    loss.backward()
    optimizer.step()
    return loss.item()


def raises_by_norm(model, optimizer, log, loss):
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if norm.isnan():
        raise ArithmeticError("gradients")
    optimizer.step()
    return norm


# As text, which pytest does not rewrite.
ASSERTING = """
def asserts_not(model, optimizer, log, loss):
    assert not torch.isnan(loss), "a loss that is none"
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        assert torch.isfinite(p).all() and not torch.isnan(p.grad).any()
    return loss.detach()
"""
exec(ASSERTING)


def leaves(model, optimizer, log, loss):
    if not math.isfinite(loss.item()):
        log.append("leaves")
        sys.exit(1)
    loss.backward()
    optimizer.step()
    return loss.detach()


asserts_not = globals()["asserts_not"]
RAISING = [raises, raises_by_number, raises_by_norm, asserts_not, leaves]


def run(body, compile_step):
    torch.manual_seed(0)
    step, state = training(body)()
    step, trail = compile_step(step), []
    for (x,) in batches():
        try:
            result = step(x)
        except (Exception, SystemExit) as error:
            result = type(error).__name__, repr(error.args)
        parameters = [p.detach().clone() for p in state["model"].parameters()]
        gradients = [None if p.grad is None else p.grad.clone() for p in state["model"].parameters()]
        trail.append((result, parameters, gradients, [*state["log"]]))
    return trail


@everywhere
@pytest.mark.parametrize("body", [*SKIPPING, *RAISING], ids=lambda body: body.__name__)
def test_plain_pythons_way_where_they_are_not(body, backend):
    """Results, exceptions, parameters, gradients and logs."""
    compiled = []

    def compile_step(step):
        compiled.append(bothways.compile(step, backend=backend, fullgraph=True))
        return compiled[0]

    assert difference(run(body, lambda step: step), run(body, compile_step), tol=1e-6) is None
    assert sum(bool(one.graphs) for one in bothways.history(compiled[0])) == 1


@everywhere
@pytest.mark.parametrize("body", [raises, raises_by_norm, asserts_not])
def test_what_raises_is_no_break_without_fullgraph(body, backend):
    compiled = []

    def compile_step(step):
        compiled.append(bothways.compile(step, backend=backend))
        return compiled[0]

    assert difference(run(body, lambda step: step), run(body, compile_step), tol=1e-6) is None
    assert not any(found for one in bothways.history(compiled[0]) for found in one.breaks if not found.is_once)


@pytest.mark.parametrize("condition", ["loss < 0.5", "loss.item() < 0.5", "loss > 3"])
def test_a_decision_that_data_may_take_either_way_is_an_error(condition):
    body = f"def body(model, optimizer, log, loss):\n    if {condition}:\n        log.append(1)\n    return loss\n"
    names = {}
    exec(body, names)
    step, _ = training(names["body"])()
    with pytest.raises(Unsupported, match="tensor_"):
        bothways.compile(step, backend="eager", fullgraph=True)(*batches()[0])
