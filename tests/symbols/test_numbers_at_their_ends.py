"""Numbers that change from call to call, where Python refuses a power, tells 0.0 from -0.0, or has their methods; and
where they are none, infinite, or more than a dtype holds."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree

NAN = math.nan

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


BOUNDS = {
    "clamp": lambda x, n: x.clamp(max=n) + x.clamp(n) + x.clamp(-1.0, n),
    "hardtanh": lambda x, n: F.hardtanh(x, -1e9, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n) + 1,
    "masked_fill_": lambda x, n: (x + 1).masked_fill_(x > 0, n) + 1,
    "full_like": lambda x, n: torch.full_like(x, n) + x,
    "alpha": lambda x, n: torch.add(x, x, alpha=n) * 2,
    "threshold": lambda x, n: F.threshold(x, 0.5, n) * 2,
    "lerp": lambda x, n: torch.lerp(x, x + 1, n),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bound", BOUNDS)
def test_what_is_no_number_or_is_not_held_is_another_program(bound, backend, dtype):
    """A program that was made for ordinary numbers is not for these: kernels compare and convert as C does."""

    def program(x, n):
        return BOUNDS[bound](x, n)

    def observe(function, n):
        try:
            return {"result": function(torch.tensor([1, 0, 2]).to(dtype), n)}
        except (RuntimeError, ValueError) as error:
            return {"raised": str(error)}

    agree(program, observe, *(1.5, 2.5, 3.5, NAN, 1e6, 1e40, math.inf, -math.inf, 4.5), backend=backend)


@pytest.mark.parametrize("bound", ["masked_fill_", "full_like"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_numbers_that_a_byte_does_not_hold_raise_where_the_handler_is(bound, backend):
    def program(x, n):
        try:
            return BOUNDS[bound](x, n)
        except RuntimeError as error:
            return str(error), x + 1

    observe = lambda function, n: {"result": function(torch.tensor([1, 0, 2], dtype=torch.uint8), n)}
    agree(program, observe, 3, 5, 7, 300, -1, 9, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_numbers_of_numpy_that_are_worked_out_and_too_large_are_no_other_ones(backend):
    numpy = pytest.importorskip("numpy")

    def program(x, n):
        large = n * numpy.int64(2**40)
        return large, x + float(large)

    observe = lambda function, n: {"result": repr(function(torch.ones(2), numpy.int64(n)))}
    agree(program, observe, 3, 5, 7, 2**22, 2**22 + 1, 2**22 + 1, 9, backend=backend)
