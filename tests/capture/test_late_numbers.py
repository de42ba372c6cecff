"""Numbers that are read from tensors and only handed on: they are read when the graph has run, without a break."""

import math

import pytest
import torch
from agreeing import agree

import bothways

BACKENDS = ["eager", "aot_eager", "native"]
total = 0.0


def returned(x, log):
    return (x * 2).sum().item()


def in_a_list(x, log):
    log.append(x.mean().item())
    log.append(x.argmax().item())
    return x + 1


def in_a_dictionary(x, log):
    return {"loss": x.sum().item(), "count": 3}


def summed(x, log):
    return (x.sum().item() + x.mean().item()) * 2 - 1, 1.5 * x.max().item(), 2 - x.min().item()


def of_what_changes_later(x, log):
    value = x.sum()
    before = value.item()
    value.add_(10)
    return before, value.item(), value


def of_an_argument(x, log):
    before = x[0].item()
    x.mul_(2)
    return before, x[0].item()


def of_what_needs_gradients(x, log):
    weight = torch.ones(3, requires_grad=True)
    return (weight * x).sum().item()


def of_whole_numbers(x, log):
    return x.long().sum().item() + 1


def by_its_type(x, log):
    log.append(float(x.sum()))
    return float(x.argmax()), int(x.argmax()), float((x > 0).sum()), float(x.mean().item())


def averaged(x, log):
    right = (x > 0).sum().item()
    return 100 * right / len(x), x.sum().item() / x.size(0), float(x.sum()) / 3


def rounded(x, log):
    log.append(round(x.sum().item(), 4))
    return round(float(x.mean()), 2), round(x.sum().item() / 3, 1), -x.sum().item(), abs(x.min().item())


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [returned, in_a_list, in_a_dictionary, summed, of_what_changes_later, of_an_argument, of_what_needs_gradients,
     of_whole_numbers, by_its_type, averaged, rounded],
)  # fmt: skip
def test_a_number(program, backend):
    def observe(function, scale):
        x, log = torch.tensor([1.0, -2.0, 3.5]) * scale, []
        result = function(x, log)
        return {"result": result, "its type": type(result).__name__, "log": log, "argument": x}

    agree(program, observe, 1, 2, 3, backend=backend, programs=1, fullgraph=True)


def test_a_sum_over_calls():
    def count(x):
        global total
        total += x.sum().item()
        return x + 1

    global total
    total = 0.0
    compiled = bothways.compile(count, fullgraph=True)
    for value in (1.0, 2.0, 3.0, 4.0):
        compiled(torch.full((2,), value))
    assert total == 20.0


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * x.sum().item(),
        lambda x: 1 if x.sum().item() > 0 else 2,
        lambda x: len(f"{x.sum().item():.2f}"),
        lambda x: {x.sum().item(): 1},
        lambda x: math.cosh(x.sum().item()),
        lambda x: x.sum().item() / x.mean().item(),
        lambda x: [0] * x.long().sum().item(),
        lambda x: round(x.sum().item()),
        lambda x: int(x.sum()),
        lambda x: 1 / x.sum().item(),
        lambda x: max(x.sum().item(), 1.0),
        lambda x: torch.full((2,), x.sum().item()),
    ],
)
def test_what_has_to_know_it_breaks_there(program):
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(bothways.errors.Unsupported, match="tensor_value"):
        bothways.compile(program, fullgraph=True)(x)
    compiled = bothways.compile(program)
    for scale in (1, 3, -1):
        plain, found = program(x * scale), compiled(x * scale)
        assert type(plain) is type(found)
        assert torch.equal(plain, found) if isinstance(plain, torch.Tensor) else plain == found


@pytest.mark.parametrize(
    "program",
    [
        lambda x: math.exp(x.sum().item()),
        lambda x: [math.exp((1.0 - x.sum().item()) / 4 * 2), math.log(x.sum().item() + 5)],
        lambda x: (math.sqrt(x.sum().item()), (2 * x.sum().item() - 1) > 3.0),
        lambda x: (math.expm1(x.sum().item()), math.log2(x.mean().item()), math.log10(x.sum().item())),
        lambda x: x.sum().item() == 3.0,
        lambda x: 2.0 < x.sum().item(),
        lambda x: (math.isnan(x.sum().item()), math.isinf(x.sum().item()), math.isfinite(x.sum().item())),
    ],
)
def test_what_is_made_of_it_is_made_behind_the_graph(program):
    """Where ``math`` has no answer, plain Python raises, before or after anything else was done."""
    compiled = bothways.compile(program, fullgraph=True)
    for numbers in ([1.0, 2.0], [3.0, 4.0], [-1.0, -2.0], [0.0, 0.0], [math.inf, 1.0], [800.0, 1.0], [math.nan, 1.0]):
        x, found = torch.tensor(numbers, dtype=torch.double), []
        for function in (program, compiled):
            try:
                found.append(repr(function(x)))
            except (ValueError, OverflowError) as error:
                found.append((type(error), str(error)))
        assert found[0] == found[1]


def test_an_iterator_that_ends_by_data_ends():
    class Halving:
        def __init__(self, x):
            self.x = x

        def __iter__(self):
            return self

        def __next__(self):
            if self.x.sum().item() < 1.0:
                raise StopIteration
            self.x = self.x / 2
            return self.x

    def program(x):
        return sum(part.sum() for part in Halving(x))

    compiled = bothways.compile(program)
    for x in (torch.tensor([8.0]), torch.tensor([20.0]), torch.tensor([0.5])):
        assert program(x) == compiled(x)
