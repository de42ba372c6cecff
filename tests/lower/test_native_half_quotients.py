"""Quotients of half precision that are made whole are eager's: by a tensor what is in between is rounded step by step,
by one of a single element, as by a number, nothing is."""

import pytest
import torch
from seeding import seeded

import bothways

HALVES = [torch.float16, torch.bfloat16]


pytestmark = pytest.mark.usefixtures("kernels_for_all")


def _numbers(dtype):
    generator = seeded(1)
    values = torch.randn(2, 5000, generator=generator)
    return (values[0] * 100).to(dtype), values[1].to(dtype)


PAIRS = {
    "tensors": lambda a, b: (a, b),
    "with gaps": lambda a, b: (a[::3], b[::3]),
    "transposed": lambda a, b: (a.view(2, -1).t(), b.view(2, -1).t()),
    "one without dimensions": lambda a, b: (a, b[3]),
    "one element": lambda a, b: (a, b[3:4]),
    "of single precision": lambda a, b: (a, torch.tensor(0.37)),
    "of double precision": lambda a, b: (a, torch.tensor(0.37, dtype=torch.double)),
    "a number": lambda a, b: (a, 0.37),
    "of a number": lambda a, b: (torch.tensor(37.7), b),
    "of one without dimensions": lambda a, b: (a[3], b),
    "both of one element": lambda a, b: (a[:1], b[:1]),
}
OPERATIONS = {
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_quotients(name, pair, dtype):
    def function(a, b):
        return OPERATIONS[name](a + 0, b) * 1

    given = PAIRS[pair](*_numbers(dtype))
    compiled = bothways.compile(function, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(*given), function(*given), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_factor_of_single_precision_is_rounded_first(dtype):
    """That of a logarithm; of the logarithms themselves a few have another last digit."""

    def function(factor, values):
        return torch.xlogy(factor, values) * 1

    factor, values = torch.tensor(37.7), torch.arange(2, 402).to(dtype)
    compiled = bothways.compile(function, fullgraph=True)
    for _ in range(2):
        assert (compiled(factor, values) != function(factor, values)).sum() <= 4
