"""Lists of a tensor's numbers that are only handed on: they are read when the graph has run, all at once."""

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways


def returned(x, log):
    return (x * 2).tolist(), x.mean(0).tolist(), (x > 0).tolist(), x.sum().tolist()


def kept(x, log):
    log.extend(x.sum(1).tolist())
    log.append(x[0].tolist())
    return x + 1


def worked_with(x, log):
    numbers = x.softmax(1).tolist()
    numbers[0].append(3.0)
    first, *others = numbers[1]
    for row in numbers:
        log.append(sum(row))
    return len(numbers), first, min(others), f"{first:.3f}", [round(number, 2) for number in others]


def of_what_changes_later(x, log):
    value = x * 1
    before = value.tolist()
    value.add_(10)
    x.mul_(2)
    return before, value.tolist(), x.tolist()


def of_what_needs_gradients(x, log):
    weight = torch.ones(3, requires_grad=True)
    return (weight * x).sum(1).tolist()


def of_none(x, log):
    return x[:0].tolist(), x[:, :0].tolist(), x[:1, 0].tolist()


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [returned, kept, worked_with, of_what_changes_later, of_what_needs_gradients, of_none]
)
def test_a_list_of_numbers(program, backend):
    def observe(function, scale):
        x, log = torch.tensor([[1.0, -2.0, 3.5], [0.5, 0.25, -1.0]]) * scale, [0.5]
        result = function(x, log)
        return {"result": repr(result), "log": log, "argument": x}

    agree(program, observe, 1, 2, 3, backend=backend, programs=1, fullgraph=True)
    agree(program, observe, 1, 2, 3, backend=backend)


def test_many_whole_numbers_are_handed_on_under_fullgraph():
    def program(x, log):
        log.extend(x.argmax(1).tolist())
        return x + 1

    def observe(function, rows):
        log = []
        function(torch.arange(rows * 3.0).sin().view(rows, 3), log)
        return {"log": log}

    agree(program, observe, 100, 100, 40, fullgraph=True)
    agree(program, observe, 100, 100, 40)


def test_what_has_to_know_one_breaks_there():
    def program(x):
        return [x * number for number in x.tolist() if number > 1]

    x = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(bothways.errors.Unsupported, match="tensor_value"):
        bothways.compile(program, fullgraph=True)(x)
    compiled = bothways.compile(program)
    for scale in (1, 2, -1):
        plain, found = program(x * scale), compiled(x * scale)
        assert len(plain) == len(found) and all(map(torch.equal, plain, found))


def test_lists_that_are_long_are_plain_pythons():
    def program(x):
        return (x + 1).tolist()

    compiled, x = bothways.compile(program), torch.arange(5000.0)
    for _ in range(2):
        assert compiled(x) == program(x)
    with pytest.raises(bothways.errors.Unsupported, match="tolist"):
        bothways.compile(program, fullgraph=True)(x)
