"""What a break costs a training step: what is handed on to the rest, and what a graph that is cut is made of."""

import inspect
import inspect as looking

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways
from bothways.grad.nodes.node import CompiledNode
from bothways.testing import RecordGraphs, same

BACKENDS = ("eager", "aot_eager", "native")


def outputs_of(record):
    [output] = record.gm.graph.find_nodes(op="output")
    return len(output.args[0])


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)

    def eval(self):
        return super().eval()

    def stacks(self, x):
        hidden = torch.tanh(x @ self.embed.weight)
        losses = [hidden.mean()]
        if hidden.sum().item() > 1e9:
            losses.append(x.sum())
        return torch.stack(losses).sum()

    def embeds(self, x):
        hidden = torch.tanh(self.embed(x))
        loss = hidden.mean()
        if hidden.sum().item() > 1e9:
            loss = loss + self.embed(x).sum()
        return loss * 2

    def sets(self, x):
        hidden = torch.tanh(x @ self.embed.weight)
        loss = hidden.mean()
        if hidden.sum().item() > 1e9:
            self.stack = self.eval()
        return loss * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["stacks", "embeds", "sets"])
def test_a_method_by_the_name_of_a_frame_reader_does_not_keep_all_variables(name, backend):
    recorded = RecordGraphs(backend)
    module = Stacked()
    plain = getattr(module, name)
    compiled = bothways.compile(plain, backend=recorded)
    for x in (torch.ones(2, 4), torch.full((2, 4), 0.5)):
        gradients = []
        for function in (plain, compiled):
            module.zero_grad()
            result = function(x)
            result.backward()
            gradients.append((result, module.embed.weight.grad))
        assert same(*gradients)
    assert outputs_of(recorded[0]) == 2  # the sum that is read, and the mean; not what both were computed from


def by_module(x):
    hidden, unread = x + 1, 5
    if hidden.sum().item() > 0:
        return sorted(inspect.stack()[0].frame.f_locals), hidden * 2
    return unread


def by_another_name(x):
    hidden, unread = x + 1, 5
    if hidden.sum().item() > 0:
        return sorted(looking.currentframe().f_locals), hidden * 2
    return unread


def by_import(x):
    import inspect as found

    hidden, unread = x + 1, 5
    if hidden.sum().item() > 0:
        return sorted(found.stack()[0].frame.f_locals), hidden * 2
    return unread


def in_a_closure():
    found = inspect

    def function(x):
        hidden, unread = x + 1, 5
        if hidden.sum().item() > 0:
            return sorted(found.stack()[0].frame.f_locals), hidden * 2
        return unread

    return function


def by_builtin(x):
    hidden, unread = x + 1, 5
    if hidden.sum().item() > 0:
        return sorted(locals()), hidden * 2
    return unread


@pytest.mark.parametrize("function", [by_module, by_another_name, by_import, in_a_closure(), by_builtin])
@pytest.mark.parametrize("backend", BACKENDS)
def test_whoever_reads_the_frame_finds_every_variable(function, backend):
    compiled = bothways.compile(function, backend=backend)
    for x in (torch.ones(3), torch.full((3,), 2.0)):
        assert same(function(x), compiled(x))


def nodes_behind(result):
    """How many of our nodes autograd finds behind a tensor."""
    seen, pending = set(), [result.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [before for before, _ in node.next_functions]
    return sum(type(node).__name__ == f"{CompiledNode.__name__}Backward" for node in seen)


@pytest.mark.parametrize("backend, most", [("aot_eager", 1), ("native", 1)])
def test_a_small_part_of_a_graph_that_is_cut_stays_as_captured(backend, most):
    def function(x, weight, other):
        hidden = F.gelu(F.layer_norm(x @ weight, (16,)) * 2).tanh().sin() + x
        return hidden, hidden @ other  # both are seen, so the second is a part of its own

    compiled = bothways.compile(function, backend=backend)
    for scale in (1.0, 0.5):
        x, weight, other = (torch.randn(16, 16).mul(scale).requires_grad_() for _ in range(3))
        found = []
        for call in (function, compiled):
            with bothways.config.patch(kernels_for_small_graphs=False):
                results = call(x, weight, other)
            found.append((results, torch.autograd.grad(sum(each.sum() for each in results), (x, weight, other))))
        torch.testing.assert_close(found[1], found[0])
        assert nodes_behind(results[1]) == most
    pieces = [str(piece) for one in bothways.history(compiled) if one.outcome for piece in one.outcome.pieces]
    assert any("as captured (small" in piece for piece in pieces)
