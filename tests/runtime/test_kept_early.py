"""A call whose graph may fail keeps copies of what is written to before it may, and of nothing else; where it fails,
everything is as plain Python leaves it."""

import pytest
import torch
from agreeing import agree

import bothways
from bothways.runtime import kept_inputs

BACKENDS = ["eager", "aot_eager", "native"]


def writes_then_reads(first, last, x, places):
    first.add_(x)
    picked = x[places]
    last.mul_(2)
    last.add_(picked.sum())
    return picked * 2


def reads_then_writes(first, last, x, places):
    picked = x[places]
    first.add_(picked.sum())
    last.mul_(2)
    return picked * 2


def writes_by_places(first, last, x, places):
    last.mul_(2)
    first.index_add_(0, places, x[: len(places)])
    last.add_(1)
    return first * 2


def through_a_view(first, last, x, places):
    first[1:].add_(1)
    picked = x[places]
    last[:2].mul_(2)
    return picked + last.sum()


def as_data(first, last, x, places):
    first.data.add_(1)
    picked = x[places]
    last.data.mul_(2)
    return picked + 1


PROGRAMS = [writes_then_reads, reads_then_writes, writes_by_places, through_a_view, as_data]


def observe(function, places):
    first, last, x = torch.ones(4), torch.arange(4.0), torch.linspace(0, 1, 4)
    try:
        returned = function(first, last, x, torch.tensor(places))
    except Exception as error:
        returned = type(error), str(error).partition("\n")[0]
    return {"returned": returned, "tensors": [first, last, x], "versions": [first._version, last._version]}


def shared(function, places):
    """Both are parts of one memory."""
    memory, x = torch.arange(6.0), torch.linspace(0, 1, 4)
    try:
        returned = function(memory[:4], memory[2:], x, torch.tensor(places))
    except Exception as error:
        returned = type(error), str(error).partition("\n")[0]
    return {"returned": returned, "memory": memory}


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("look", [observe, shared])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_call_that_fails_leaves_what_plain_python_leaves(program, look, backend):
    agree(program, look, [1, 2], [1, 2], [1, 7], [3, 0], [-9, 0], backend=backend)


@pytest.mark.parametrize("program, copies", [
    (writes_then_reads, 1), (reads_then_writes, 0), (writes_by_places, 2), (through_a_view, 1), (as_data, 1),
], ids=lambda one: getattr(one, "__name__", None))  # fmt: skip
def test_no_more_is_copied_than_may_have_changed(program, copies, monkeypatch):
    compiled = bothways.compile(program, backend="eager")
    copied, copy = [], kept_inputs._copy
    observe(compiled, [1, 2])
    monkeypatch.setattr(kept_inputs, "_copy", lambda *args: copied.append(args[0]) or copy(*args))
    observe(compiled, [1, 2])
    assert len(copied) == copies


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_optimizer_behind_a_backward_is_not_copied(backend, monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step(x, place):
        optimizer.zero_grad()
        loss = model(x)[place].sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled, x = bothways.compile(step, backend=backend), torch.randn(5, 3)
    for _ in range(3):
        compiled(x, torch.tensor([1, 2]))
    copied, copy = [], kept_inputs._copy
    monkeypatch.setattr(kept_inputs, "_copy", lambda *args: copied.append(args[0]) or copy(*args))
    compiled(x, torch.tensor([1, 2]))
    parameters = {id(parameter) for parameter in model.parameters()}
    assert not parameters.intersection(map(id, copied))
