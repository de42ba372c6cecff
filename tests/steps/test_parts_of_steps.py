"""What a step's forward may hold when its backward is captured: custom functions, checkpoints, hooks of modules."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch.utils.checkpoint import checkpoint

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * 2 + 0.01


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return self.outer(torch.tanh(self.norm(self.inner(x))))


def training(step_of):
    def make():
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        log = []
        return step_of(net, optimizer, log), {"model": net, "log": log}

    return make


def custom_functions(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net.outer(Doubled.apply(net.inner(x))), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def checkpointed(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        hidden = checkpoint(lambda x: F.dropout(torch.tanh(net.inner(x)), 0.3), x, use_reentrant=False)
        loss = F.cross_entropy(net.outer(hidden), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def hooks_of_modules(net, optimizer, log):
    def grads(module, grad_input, grad_output):
        log.append((type(module).__name__, [None if part is None else part.sum() for part in grad_output]))
        return tuple(None if part is None else part * 0.5 for part in grad_input)

    net.inner.register_full_backward_hook(grads)
    net.outer.register_full_backward_hook(grads)
    net.norm.register_full_backward_pre_hook(lambda module, grad_output: log.append("pre"))

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def autocast(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(x).float(), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def dropout_and_statistics(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(F.dropout(net(x), 0.2), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def changes_in_place(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        hidden = net.inner(x)
        hidden.relu_()
        hidden = hidden * 2
        hidden[:, 0] = 0
        out = net.outer(hidden)
        out += 1
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def an_embedding_and_indices(net, optimizer, log):
    table = torch.nn.Embedding(5, 6)

    def step(x, y):
        optimizer.zero_grad()
        table.weight.grad = None
        loss = F.cross_entropy(net(table(y) + x), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), table.weight.grad

    return step


def counts_in_the_graph(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        return loss.detach(), (out.argmax(1) == y).float().mean()

    return step


PARTS = [
    custom_functions, checkpointed, hooks_of_modules, autocast, dropout_and_statistics, changes_in_place,
    an_embedding_and_indices, counts_in_the_graph,
]  # fmt: skip


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_a_step_with(part, backend):
    agree(training(part), batches(4), backend, programs=1, tol=1e-2 if part is autocast else 1e-5)
