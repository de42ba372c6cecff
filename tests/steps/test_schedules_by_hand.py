"""Learning rates that the step itself works out of a counter, by whatever Python there is: one program for all of them.

The first program is for nothing, which means more than other numbers do; the second one is for every number.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, batches

import bothways

BASE, TOTAL = 0.1, 20

# Each gives the learning rate for the number of a step.
RULES = {
    "cosine": lambda step: BASE * 0.5 * (1 + math.cos(math.pi * step / TOTAL)),
    "exponential": lambda step: BASE * math.exp(-0.1 * step),
    "power": lambda step: BASE * 0.9**step,
    "warm up": lambda step: BASE * min(1.0, (step + 1) / 8),
    "as long as it is larger": lambda step: max(BASE * 0.8**step, 0.01),
    "noam": lambda step: BASE * min((step + 1) ** -0.5, (step + 1) * 10**-1.5),
    "logarithm": lambda step: BASE / math.log(step + 2),
    "root": lambda step: BASE / math.sqrt(step + 1),
    "square": lambda step: BASE / (1 + step**2),
    "tangent": lambda step: BASE * (1 - math.tanh(step / 10)),
    "every fifth": lambda step: BASE * 0.5 ** (step // 5),
    "triangle": lambda step: BASE * abs(step % 8 - 4.5) / 4,
    "remainder": lambda step: BASE * (0.5 + (step * 0.3) % 1.0),
    "rounded": lambda step: round(BASE * 0.9**step, 4),
    "bits": lambda step: BASE / (1 + (step & 3)),
    "several": lambda step: BASE * math.atan2(math.sin(step / 7) + 2, 3.0) * math.fabs(math.erf(step / 9) - 2),
}


class State:
    """Where a training keeps its counter."""

    def __init__(self):
        self.step = 0


def training(rule):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    state = State()

    def step(x, y):
        rate = rule(state.step)
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(rate * parameter.grad)
        state.step += 1
        return loss.detach(), rate

    return step, model


def trained(rule, count, compile_step=lambda step: step):
    step, model = training(rule)
    step = compile_step(step)
    found = [step(*batch) for batch in batches(count)]
    return step, found, list(model.parameters())


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RULES)
def test_a_rate_is_worked_out_of_a_counter(name, backend):
    def compiled(step):
        return bothways.compile(step, backend=backend, fullgraph=True)

    _, expected, weights = trained(RULES[name], 14)
    step, found, own = trained(RULES[name], 14, compiled)
    assert [rate for _, rate in found] == [rate for _, rate in expected], "to the last bit"
    assert {type(rate) for _, rate in found} == {float}
    torch.testing.assert_close([loss for loss, _ in found], [loss for loss, _ in expected])
    torch.testing.assert_close(own, weights)
    assert len(bothways.history(step)) == 2


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rate_is_worked_out_of_two_counters(backend):
    """Both are found from one place, and so is what comes of them."""

    class Counters:
        def __init__(self):
            self.step, self.length = 2, 3

    def program(x, state):
        state.step += 1
        if state.step >= state.length:
            state.step, state.length = 2, state.length * 2
        return x * (BASE * (1 + math.cos(math.pi * state.step / state.length)))

    states = Counters(), Counters()
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for _ in range(40):
        expected, found = program(torch.ones(3), states[0]), compiled(torch.ones(3), states[1])
        torch.testing.assert_close(found, expected)
    assert vars(states[0]) == vars(states[1])
    assert len(bothways.history(compiled)) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_raises_for_some_numbers_raises_when_its_turn_comes(backend):
    """What was done before is done."""

    def plain(x, number):
        x.add_(1)
        return x * math.sqrt(5 - number)

    def observed(function, number):
        x = torch.zeros(3)
        try:
            return x, function(x, number)
        except ValueError as error:
            return x, str(error)

    compiled = bothways.compile(plain, backend=backend)
    for number in (2, 3, 4, 7, 3, 8):
        for found, expected in zip(observed(compiled, number), observed(plain, number), strict=True):
            assert str(found) == str(expected), number


def test_a_power_that_is_a_complex_number_for_others():
    def plain(x, number):
        power = (6 - number) ** 0.5
        return x * power, type(power)

    compiled = bothways.compile(plain, backend="eager")
    for number in (2, 3, 4, 9, 5):
        found, expected = compiled(torch.ones(2), number), plain(torch.ones(2), number)
        assert found[1] is expected[1]
        torch.testing.assert_close(found[0], expected[0])


def test_whole_numbers_stay_whole():
    def plain(x, number):
        counts = math.floor(number / 3), int(number / 4), round(number / 5), min(number, 7), number**2, abs(3 - number)
        return x + sum(counts), counts

    compiled = bothways.compile(plain, backend="eager")
    for number in range(2, 30):
        found, expected = compiled(torch.ones(2), number), plain(torch.ones(2), number)
        assert str(found) == str(expected)
    assert len(bothways.history(compiled)) <= 7


def test_the_smaller_of_a_whole_number_and_a_fraction_is_what_it_is():
    def plain(x, number):
        least = min(1, number / 8)
        return x * least, least

    compiled = bothways.compile(plain, backend="eager")
    for number in (2, 3, 4, 7, 8, 9, 12, 5):
        found, expected = compiled(torch.ones(2), number), plain(torch.ones(2), number)
        assert str(found) == str(expected)


def test_decisions_about_such_a_number_are_guarded():
    def plain(x, number):
        rate = math.cos(number / 10)
        return x * rate if rate > 0.5 else x - rate

    compiled = bothways.compile(plain, backend="eager")
    for number in (2, 3, 4, 30, 31, 5, 60):
        torch.testing.assert_close(compiled(torch.ones(2), number), plain(torch.ones(2), number))
    assert len(bothways.history(compiled)) <= 3


def test_sizes_are_reasoned_about_as_before():
    def plain(x):
        most = min(x.shape[0], 5)
        return x[:most] * math.sqrt(x.shape[1])

    compiled = bothways.compile(plain, backend="eager")
    for rows in (2, 3, 4, 9, 8, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), plain(x))
