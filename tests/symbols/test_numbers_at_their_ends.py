"""Numbers that change from call to call, where Python refuses a power, tells 0.0 from -0.0, or has their methods."""

import math

import pytest
import torch
from agreeing import agree

POWERS = {
    "2 ** n": (lambda n: 2**n, (0.5, 1.5, 2.5, 1e10, -1e10, 1e4, math.inf, math.nan)),
    "n ** 2.0": (lambda n: n**2.0, (0.5, 1.5, 2.5, 1e200, -1.5, 0.0)),
    "n ** 0.5": (lambda n: n**0.5, (0.5, 1.5, 2.5, 1e200, -1.5, 0.0)),
    "n ** -2.0": (lambda n: n**-2.0, (0.5, 1.5, 2.5, 1e-200, 0.0)),
    "0.9 ** n": (lambda n: 0.9**n, (2, 3, 4, -100_000, 5)),
    "1.5 ** n": (lambda n: 1.5**n, (2, 3, 4, 100_000, 5)),
    "n ** n": (lambda n: n**n, (0.5, 1.5, 2.5, 400.0, 1.25)),
}


def outcome(function, number):
    try:
        return {"result": repr(function(torch.ones(2), number))}
    except OverflowError as error:
        return {"raised": str(error)}


@pytest.mark.parametrize("power", POWERS)
def test_powers_that_are_too_large_are_refused_where_they_are_computed(power):
    compute, numbers = POWERS[power]

    def program(x, n):
        try:
            power = compute(n)
        except (OverflowError, ZeroDivisionError) as error:
            return str(error), x + 1
        return power, x * 2

    agree(program, outcome, *numbers, *numbers[:3])


def test_a_power_that_is_too_large_leaves_the_function():
    agree(lambda x, n: x * 2.0**n, outcome, 0.5, 1.5, 1e5, 2.5)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_zeros_that_are_worked_out_keep_their_signs(backend):
    def program(x, first, second):
        return math.atan2(math.fmod(first, first), math.fmod(second, second)), x + 1

    def observe(function, pair):
        return {"result": repr(function(torch.ones(2), *pair))}

    pairs = (1.5, 2.0), (2.5, 3.0), (-1.5, 4.0), (-2.5, 5.0), (2.5, -3.0), (-2.5, -5.0), (2.5, 3.0)
    agree(program, observe, *pairs, backend=backend)


def test_methods_of_numbers_that_are_handed_on():
    def apply(function, number):
        print(end="")
        return function(number)

    def program(x, n):
        kept = n.__add__, x.shape[0].__mul__, n.__class__
        return apply(kept[0], 3), kept[1](2), x + 1

    agree(program, outcome, 3, 4, 5, 4)
