"""A backward inside a compiled step that comes to what was computed before the call.

It runs on PyTorch's engine, at its moment, between two graphs; ``fullgraph=True`` does not mind.
"""

import pytest
import torch
import torch.nn.functional as F
from agreeing import assert_same
from stepping import BACKENDS, agree, batches

import bothways
from bothways.errors import Unsupported

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


class Parts:
    """An encoder that stays outside, a head, an optimizer for each, and a log of the encoder's hooks."""

    def __init__(self):
        self.encoder, self.head = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
        self.outer = torch.optim.AdamW(self.encoder.parameters(), lr=0.1, eps=1e-4)
        self.inner = torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)
        self.log = []
        self.encoder.weight.register_hook(lambda gradient: self.log.append(("encoder", gradient.clone())))

    def forget(self):
        self.outer.zero_grad()
        self.inner.zero_grad()

    def update(self):
        self.outer.step()
        self.inner.step()



def training(way, outside):
    def make():
        parts = Parts()
        named = {"encoder": parts.encoder, "head": parts.head, "outer": parts.outer, "inner": parts.inner}
        return way(parts), {**named, "log": parts.log, "before": lambda x, y: (outside(parts, x), y)}

    return make


def features(parts, x):
    return torch.tanh(parts.encoder(x))


def of_features(parts):
    def step(hidden, y):
        parts.forget()
        loss = F.cross_entropy(parts.head(hidden), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*parts.encoder.parameters(), *parts.head.parameters()], 1.0)
        parts.update()
        return loss.item()

    return step


def in_a_function_of_its_own(parts):
    def learn(loss):
        parts.forget()
        loss.backward()
        parts.log.append(parts.encoder.bias.grad.clone())
        parts.update()

    def step(hidden, y):
        loss = F.cross_entropy(parts.head(hidden), y)
        learn(loss)
        return loss.detach()

    return step


def with_parameters_that_are_used_on_both_sides(parts):
    def step(hidden, y):
        parts.forget()
        penalty = parts.encoder.weight.square().sum()
        (F.cross_entropy(parts.head(hidden), y) + 0.1 * penalty).backward()
        parts.update()
        return penalty.detach()

    return step


def twice(parts):
    def step(hidden, y):
        parts.forget()
        loss = F.cross_entropy(parts.head(hidden), y)
        loss.backward(retain_graph=True)
        first = parts.encoder.weight.grad.clone()
        (loss * 2).backward()
        parts.update()
        return first

    return step


def added_to_what_is_there(parts):
    def step(hidden, y):
        for target in (y, y.flip(0)):
            F.cross_entropy(parts.head(hidden), target).backward(retain_graph=True)
        parts.encoder.weight.grad.mul_(0.5)
        parts.update()
        parts.encoder.zero_grad(set_to_none=False)
        parts.inner.zero_grad()

    return step


def by_grad(parts):
    def step(hidden, y):
        loss = F.cross_entropy(parts.head(hidden), y)
        weights = [parts.encoder.weight, parts.head.weight, hidden]
        gradients = torch.autograd.grad(loss, weights, retain_graph=True)
        with torch.no_grad():
            parts.encoder.weight.sub_(gradients[0], alpha=0.1)
        return gradients[1:]

    return step


def penalized(parts):
    """The slope at a tensor that is computed inside stays inside, whatever that tensor comes from."""

    def step(hidden, y):
        parts.forget()
        moved = hidden * 2
        logits = parts.head(torch.tanh(moved))
        (slope,) = torch.autograd.grad(logits.square().sum(), moved, create_graph=True)
        loss = F.cross_entropy(logits, y) + slope.norm(dim=1).mean()
        loss.backward()
        parts.update()
        return slope.detach()

    return step


def with_slopes_alone(parts):
    def step(hidden, y):
        moved = hidden * 2
        (slope,) = torch.autograd.grad(parts.head(torch.tanh(moved)).square().sum(), moved)
        F.cross_entropy(parts.head(hidden + slope), y).backward()
        parts.update()
        parts.forget()
        return slope

    return step


def with_hooks_inside(parts):
    def step(hidden, y):
        parts.forget()
        logits = parts.head(hidden)
        logits.register_hook(lambda gradient: parts.log.append(("logits", gradient.clone())))
        hidden.register_hook(lambda gradient: gradient / 2)
        F.cross_entropy(logits, y).backward()
        parts.update()

    return step


WAYS = [
    of_features, in_a_function_of_its_own, with_parameters_that_are_used_on_both_sides, twice, added_to_what_is_there,
    by_grad, penalized, with_slopes_alone, with_hooks_inside,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_step_whose_features_come_from_outside(way, backend):
    step = agree(training(way, features), batches(4), backend)
    found = {found.code for found in bothways.explain(step).breaks}
    assert {"backward"} <= found <= {"backward", "lazy_state", "object_unknown"}  # the last is a loop's iterator


def test_programs_are_made_once(backend):
    agree(training(of_features, features), batches(6), backend, programs=2)  # before the backward, and behind it


def test_a_loss_that_was_computed_outside(backend):
    def loss_of(parts, x):
        return parts.head(torch.tanh(parts.encoder(x))).square().mean()

    def way(parts):
        def step(loss, y):
            parts.forget()
            loss.backward()
            torch.nn.utils.clip_grad_value_(parts.encoder.parameters(), 0.1)
            parts.update()
            return loss.item()

        return step

    agree(training(way, loss_of), batches(4), backend)


def test_a_state_that_is_carried_along_refuses_what_was_freed(backend):
    def run(compile_step):
        torch.manual_seed(0)
        cell = torch.nn.GRUCell(6, 8)

        def step(x, hidden):
            cell.zero_grad()
            hidden = cell(x, hidden)
            hidden.square().mean().backward()
            return hidden

        step = compile_step(step)
        hidden = step(torch.randn(4, 6), torch.zeros(4, 8))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            step(torch.randn(4, 6), hidden)
        hidden = step(torch.randn(4, 6), hidden.detach())
        return {"hidden": hidden.detach(), "gradients": [parameter.grad for parameter in cell.parameters()]}

    plain, own = run(lambda step: step), run(lambda step: bothways.compile(step, backend=backend, fullgraph=True))
    assert_same(plain, own, backend)


def test_other_breaks_are_errors_still(backend):
    weight = torch.ones(3, requires_grad=True)

    @bothways.compile(backend=backend, fullgraph=True)
    def step(x):
        (x * 2).sum().backward()
        if weight.grad.sum() > 0:
            return weight.grad + 1
        return weight.grad

    with pytest.raises(Unsupported) as caught:
        step(weight * 3)
    assert caught.value.break_.code == "tensor_branch"
