"""Numbers that many steps are worked out in: what a program spells out for one stays short."""

import pytest
import torch
from agreeing import agree

import bothways

X = torch.arange(300.0)


def test_a_sum_of_many_numbers_that_are_read():
    def program(x):
        total, least, shown = 0.0, 10.0, []
        for number in range(260):
            total += x[number].item()
            shown.append(round(total, 3))
        for number in range(120):
            least = min(least, x[number].item())
        return total, least, shown[-1]

    agree(program, lambda function, scale: {"sums": function(X * scale)}, 1, 2, -3, programs=1, fullgraph=True)


def halved(x, number):
    for turn in range(300):
        number = (number * 3 + turn) // 2 % 1009
    return x + 1, number


def doubled(x, number):
    """Each turn needs the number twice, so that its text would double as well."""
    for turn in range(300):
        number = number // 2 + turn % 7 * number - number % 3
        number %= 1_000_003
    return x + 1, number


def multiplied(x, number):
    for _ in range(40):
        number = (number * number + number) % 1009
    for _ in range(5):
        number = number * number + number
    return x + 1, number


def decayed(x, number):
    number = number / 2
    for _ in range(300):
        number = number * 0.99 + 1e-5
    return x * number, number


def towards_a_root(x, number):
    root = number * 0.5
    for _ in range(30):
        root = root * 0.5 + 1.5 / (1.0 + root * root)
    return x * root, root


@pytest.mark.parametrize("program", [halved, doubled, multiplied, decayed, towards_a_root])
def test_a_number_that_changes_goes_through_a_loop(program):
    def observe(function, number):
        return {"result": function(X[:2], number)}

    agree(program, observe, 3, 3, 4, 11, 12, 14, fullgraph=True)


def test_sums_of_many_sizes_stay_sums():
    def program(parts):
        return torch.cat(parts) * sum(part.shape[0] for part in parts)

    compiled = bothways.compile(program, backend="eager", fullgraph=True, dynamic=True)
    for step in (2, 3, 5):
        parts = [torch.ones(step * number + 2) for number in range(40)]
        assert torch.equal(program(parts), compiled(parts))
    assert len(bothways.history(compiled)) == 1
