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


def of_two_kinds_and_used_twice(x, log):
    least = min(x.sum().item(), 3)
    log.append(least)
    return least, math.exp(least), x + 1


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [returned, in_a_list, in_a_dictionary, summed, of_what_changes_later, of_an_argument, of_what_needs_gradients,
     of_whole_numbers, by_its_type, averaged, rounded, of_two_kinds_and_used_twice],
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
        lambda x: [0] * x.long().sum().item(),
        lambda x: max(x.sum().item(), 2.0, key=abs),
        lambda x: min(x.sum().item(), 3) + 1,
        lambda x: isinstance(min(x.sum().item(), 3), float),
        lambda x: sorted([x.sum().item(), 1.0]),
        lambda x: (x.sum().item() > 2) is True,
        lambda x: x.sum().item() is x.sum().item(),
        lambda x: x.sum().item() ** 20,
        lambda x: x.sum().item() / 0 if x.shape[0] > 2 else x.sum().item() or 3,
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
        lambda x: (int(x.sum()), int(x.sum().item() * 100), round(x.sum().item())),
        lambda x: (math.floor(x.sum().item()), math.ceil(x.mean().item()), math.trunc(x.sum().item())),
        lambda x: (x.sum().item() / x.mean().item(), 1 / x.sum().item(), (x > 1).sum().item() / (x > 0).sum().item()),
        lambda x: (x.sum().item() // 2, x.sum().item() % 3, x.argmax().item() // 2, 7 % (x > 0).sum().item()),
        lambda x: (x.sum().item() ** 2, x.mean().item() ** 3, x.argmax().item() ** 3),
        lambda x: (x.sum().item() ** 0.5, math.exp(x.sum().item() ** 2 / 4)),
        lambda x: (min(x.sum().item(), 3.5), max(0.0, x.sum().item()), max([x.sum().item(), 1.0, x.mean().item()])),
        lambda x: (min(x.sum().item(), 3), max(x.argmax().item(), 1) + 1, f"{min(x.sum().item(), 3):.2f}"),
        lambda x: (math.exp(min(x.sum().item(), 20)), math.log(max(x.sum().item(), 1e-8))),
        lambda x: math.exp(min(x.sum().item(), 20.0) / 2),
        lambda x: (bool(x.sum() > 0), (x > 0).all().item(), bool(x.sum()), bool(x.argmax()), bool(x.sum().item() > 2)),
        lambda x: (int((x > 0).all()), float((x > 0).any()), -((x > 0).any().item()), (x > 0).all().item() + 1),
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
            except (ValueError, ArithmeticError) as error:
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


def test_the_best_so_far_is_kept_with_one_program_for_all():
    class Run:
        best, worst, steps = 10.0, 0, 0

    def program(run, x):
        run.best = min(run.best, x.mean().item())
        run.worst = max(run.worst, x.abs().max().item())
        run.steps += 1
        return math.exp(min(x.sum().item(), 20))

    compiled = bothways.compile(program, fullgraph=True)
    plainly, found = Run(), Run()
    for number in range(8):
        x = torch.tensor([1.0, -2.0, 3.5]) * (number - 3)
        assert program(plainly, x) == compiled(found, x)
        assert vars(plainly) == vars(found)
    assert len(bothways.history(compiled)) <= 3


@pytest.mark.parametrize("fullgraph", [True, False])
def test_the_truth_of_a_tensor_is_asked_where_it_decides(fullgraph):
    """Whether all numbers are finite is taken for granted under ``fullgraph=True``, however it is asked."""

    def program(x, log):
        fine = torch.isfinite(x).all().item()
        log.append(fine)
        if not (x < 1e6).all().item():
            raise AssertionError("too large")
        return x + 1 if fine and bool(torch.isfinite(x).all()) else x * 0

    compiled = bothways.compile(program, fullgraph=fullgraph)
    for numbers in ([1.0, 2.0], [1.0, math.inf], [1.0, 2e6], [3.0, 4.0], [math.nan, -1.0]):
        outcomes = []
        for function in (program, compiled):
            log = []
            try:
                outcomes.append((repr(function(torch.tensor(numbers), log)), log))
            except AssertionError as error:
                outcomes.append((str(error), log))
        assert outcomes[0] == outcomes[1]


def test_a_truth_that_was_read_before_a_change():
    def program(x):
        flag = x > 0
        before = flag.all().item()
        flag.logical_not_()
        return before, flag.any().item(), 1 if before else 2

    compiled = bothways.compile(program)
    for numbers in ([1.0, 2.0], [1.0, -2.0], [-1.0, -2.0]):
        assert program(torch.tensor(numbers)) == compiled(torch.tensor(numbers))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_which_truth_it_is(fullgraph):
    def program(x):
        fine = torch.isfinite(x).all().item()
        return (x + 1 if fine is True else x * 0), fine is None, fine is not False, x.sum().item() is None

    compiled = bothways.compile(program, fullgraph=fullgraph)
    for numbers in ([1.0, 2.0], [1.0, math.inf], [-1.0, 2.0], [math.nan, -1.0]):
        assert repr(program(torch.tensor(numbers))) == repr(compiled(torch.tensor(numbers)))
