"""A line that relies on something else at each call, as one that asks which states of a batch are None: when there are
as many programs as there may be, what that line calls is plain Python's, and all around it stays compiled.
"""

import random
import sys
import warnings

import pytest
import torch
from agreeing import agree

import bothways


def learner(seed=0):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    memory = [
        (torch.randn(1, 4), torch.randint(0, 2, (1, 1)), torch.randn(1, 4) if number % 3 else None, torch.randn(1))
        for number in range(40)
    ]

    def step():
        batch = list(zip(*random.sample(memory, 8), strict=True))
        has_next = torch.tensor(tuple(map(lambda state: state is not None, batch[2])), dtype=torch.bool)
        following = torch.cat([state for state in batch[2] if state is not None])
        values = net(torch.cat(batch[0])).gather(1, torch.cat(batch[1]))
        best = torch.zeros(8)
        with torch.no_grad():
            best[has_next] = net(following).max(1).values
        loss = torch.nn.functional.smooth_l1_loss(values, (best * 0.99 + torch.cat(batch[3])).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, net


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the comprehension is a loop of its function, which stays")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_step_stays_compiled_whose_batches_have_gaps(backend):
    step, net = learner()
    other, compiled_net = learner()
    compiled = bothways.compile(other, backend=backend)
    made = []
    for number in range(36):
        random.seed(number)
        expected = step()
        random.seed(number)
        with warnings.catch_warnings():
            warnings.simplefilter("error", bothways.errors.RecompileLimitWarning)
            assert compiled() == pytest.approx(expected, rel=1e-4, abs=1e-5)
        made.append(len(bothways.history(compiled)))
    for mine, theirs in zip(net.parameters(), compiled_net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert made[-1] == made[-8]
    explained = bothways.explain(compiled)
    assert not explained.plain_from_now_on
    assert {found.code for found in explained.breaks} >= {"value_changes"}


def name_of(kind):
    return {"a": 1, "b": 2}.get(kind, len(kind))


def by_kind(x, kind):
    y = x.sin()
    number = name_of(kind)
    return y * 2 + number


def observe(function, kind):
    return {"result": function(torch.ones(3), kind)}


def test_kinds_without_end_are_one_program_more():
    kinds = [f"kind {number}" * number for number in range(1, 30)]
    compiled = agree(by_kind, observe, *kinds, *kinds)
    assert len(bothways.history(compiled)) < 24
    assert not bothways.explain(compiled).plain_from_now_on


def test_one_graph_is_one_graph_or_none():
    compiled = bothways.compile(by_kind, backend="eager", fullgraph=True)
    with pytest.warns(bothways.errors.RecompileLimitWarning):
        for number in range(12):
            assert torch.equal(compiled(torch.ones(3), "k" * number), by_kind(torch.ones(3), "k" * number))


def in_a_loop(x, kinds):
    for kind in kinds:
        x = x * name_of(kind)
    return x


def test_lines_in_loops_stay():
    compiled = bothways.compile(in_a_loop, backend="eager")
    with pytest.warns(bothways.errors.RecompileLimitWarning):
        for number in range(12):
            kinds = ["k" * number, "a"]
            assert torch.equal(compiled(torch.ones(3), kinds), in_a_loop(torch.ones(3), kinds))


def refusing(x, kind):
    y = x + 1
    try:
        y = y * {"kind 0": 2.0}[kind]
    except KeyError as error:
        return y, str(error)
    return y, None


def test_what_such_a_line_raises_is_caught_where_it_was():
    agree(refusing, observe, *[f"kind {number}" for number in range(16)], *["kind 0", "kind 3"])
