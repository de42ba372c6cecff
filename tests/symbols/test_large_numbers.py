"""Python's numbers have no end: those that an operation cannot take are errors, or wrap, exactly as in eager."""

import pytest
import torch
import torch.nn.functional as F

import bothways
from bothways.testing import same

BACKENDS = ["eager", "aot_eager", "native"]
HUGE = 2**70


pytestmark = pytest.mark.usefixtures("kernels_for_all")


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error).partition("\nException raised from")[0]  # what follows are frames of C++


def assigned(x, key, value):
    x = x.clone()
    x[key] = value
    return x + 1


WHOLE = {
    "times": lambda x: x * HUGE,
    "times the negative": lambda x: x * -HUGE,
    "plus": lambda x: x + HUGE,
    "from the left": lambda x: HUGE - x,
    "over": lambda x: x / HUGE,
    "a quotient": lambda x: x // HUGE,
    "a remainder": lambda x: x % HUGE,
    "a power": lambda x: x**HUGE,
    "a base": lambda x: HUGE**x,
    "compared": lambda x: x < HUGE,
    "equal": lambda x: x == HUGE,
    "filled": lambda x: x.clone().fill_(HUGE) + 1,
    "full": lambda x: torch.full((4,), HUGE) + x,
    "full alike": lambda x: torch.full_like(x, HUGE) + 1,
    "bounds": lambda x: x.clamp(-HUGE, HUGE) + 1,
    "chosen": lambda x: torch.where(x > 0, x, HUGE) + 1,
    "masked": lambda x: x.masked_fill(x > 0, HUGE) + 1,
    "assigned": lambda x: assigned(x, 0, HUGE),
    "a factor of a term": lambda x: torch.add(x, x, alpha=HUGE),
    "a tensor": lambda x: torch.tensor(HUGE) + x,
    "in place": lambda x: x.clone().mul_(HUGE),
    "a slope": lambda x: F.leaky_relu(x, HUGE),
    "a size": lambda x: x + torch.zeros(HUGE),
    "a negative size": lambda x: x + torch.zeros(-1),
    "a shape": lambda x: (x + 1).reshape(-2, 4),
    "a dimension": lambda x: (x + 1).sum(HUGE),
    "an index": lambda x: (x + 1)[HUGE],
    "an end": lambda x: (x + 1)[:HUGE],
    "a beginning": lambda x: (x + 1)[HUGE:],
    "a step": lambda x: (x + 1)[::HUGE],
    "a shift": lambda x: (x + 1).roll(HUGE),
    "repeated": lambda x: (x + 1).repeat(-1),
    "the first beyond 64 bits": lambda x: x + 2**64,
    "the last of 64 bits": lambda x: x + (2**64 - 1),
    "the first beyond 63": lambda x: x * 2**63,
    "filled beyond 63": lambda x: torch.full_like(x, 2**63) + 1,
    "the least": lambda x: x * -(2**63),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_beyond_64_bits(name, backend):
    for dtype in (torch.float32, torch.int64):
        compiled = bothways.compile(WHOLE[name], backend=backend)
        for _ in range(2):
            x = torch.ones(8, dtype=dtype)
            assert same(outcome(compiled, x), outcome(WHOLE[name], x))


# (dtype, function): numbers that the dtype does not hold.
ELEMENTS = {
    "bytes filled": (torch.uint8, lambda x: x.clone().fill_(300)),
    "bytes filled with a negative": (torch.uint8, lambda x: x.clone().fill_(-1)),
    "bytes made": (torch.int8, lambda x: torch.full((3,), 300, dtype=torch.int8) + x[:3]),
    "bytes made alike": (torch.int8, lambda x: torch.full_like(x, -129) + 1),
    "bounds of bytes": (torch.uint8, lambda x: x.clamp(-5, 300) + 1),
    "bytes chosen": (torch.uint8, lambda x: torch.where(x > 0, x, 300) + 1),
    "bytes masked": (torch.int8, lambda x: x.masked_fill(x > 0, 300) + 1),
    "bytes masked with no number": (torch.int32, lambda x: x.masked_fill(x > 0, float("nan")) + 1),
    "bytes added": (torch.int8, lambda x: x + 300),
    "bytes added with a factor": (torch.int8, lambda x: torch.add(x, x, alpha=300)),
    "bytes compared": (torch.int8, lambda x: (x < 300) & (x != -1000)),
    "words filled": (torch.int32, lambda x: x.clone().fill_(2**31)),
    "whole numbers filled with infinity": (torch.int64, lambda x: x.clone().fill_(float("inf"))),
    "whole numbers filled with much": (torch.int64, lambda x: x.clone().fill_(1e30)),
    "whole numbers filled with a fraction": (torch.int64, lambda x: x.clone().fill_(1.5)),
    "halves filled": (torch.float16, lambda x: x.clone().fill_(1e10)),
    "halves filled with infinity": (torch.float16, lambda x: x.clone().fill_(float("inf"))),
    "halves masked": (torch.float16, lambda x: x.masked_fill(x > 0, -1e9) + 1),
    "halves times": (torch.float16, lambda x: x * 1e10),
    "floats filled": (torch.float32, lambda x: x.clone().fill_(1e300)),
    "floats made": (torch.float32, lambda x: torch.full((3,), 1e300, dtype=torch.float32) + x[:3]),
    "bounds of floats": (torch.float32, lambda x: x.clamp(-1e300, 1e300) + 1),
    "floats times": (torch.float32, lambda x: x * 1e300),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ELEMENTS)
def test_a_number_that_no_element_can_be(name, backend):
    dtype, function = ELEMENTS[name]
    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        x = torch.ones(8, dtype=dtype)
        assert same(outcome(compiled, x), outcome(function, x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_error_is_raised_at_its_line(backend):
    def plain(x, done):
        done.append(1)
        try:
            return x.clone().fill_(300)
        except RuntimeError as error:
            done.append(str(error))
            return x * 2
        finally:
            done.append(2)

    compiled = bothways.compile(plain, backend=backend)
    for _ in range(2):
        ours, theirs = [], []
        x = torch.ones(8, dtype=torch.uint8)
        assert same(compiled(x, ours), plain(x, theirs))
        assert ours == theirs


# Numbers that change are inputs of a program.
CHANGING = {
    "times": (torch.float32, [3, 4, 5, 2**62, 2**63, 2**64, HUGE, -HUGE], lambda x, n: x * n + 1),
    "times the square": (torch.float32, [3, 4, 5, 2**31, 2**32, 2**33, 2**40], lambda x, n: x * (n * n) + 1),
    "times the square of whole": (torch.int64, [3, 4, 5, 2**31, 2**32, 2**33], lambda x, n: x * (n * n) + 1),
    "twice": (torch.int64, [3, 4, 5, 2**61, 2**62 - 1, 2**62, 2**63], lambda x, n: x + (n + n)),
    "a linear number": (torch.float32, [3, 4, 5, 2**59, -(2**59)], lambda x, n: x + (8 * n - 3)),
    "bytes filled": (torch.int8, [3, 4, 5, 300, 2**40], lambda x, n: x.clone().fill_(n) + 1),
    "bounds of bytes": (torch.int8, [3, 4, 5, 300, 2**40], lambda x, n: x.clamp(0, n) + 1),
    "bytes chosen": (torch.uint8, [2, 4, 8, 300, 0, HUGE], lambda x, n: torch.where(x > 0, x, n) + 1),
    "made": (torch.float32, [3, 4, 5, 300, 2**62, 2**63], lambda x, n: torch.full((8,), n) + x),
    "a shape": (torch.float32, [2, 4, 8, -2, HUGE, 0], lambda x, n: x.reshape(n, -1) + 1),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CHANGING)
def test_a_number_that_grows(name, backend):
    dtype, numbers, function = CHANGING[name]
    compiled = bothways.compile(function, backend=backend)
    for number in [*numbers, *numbers[:3]]:
        x = torch.ones(8, dtype=dtype)
        assert same(outcome(compiled, x, number), outcome(function, x, number)), number


def test_products_of_sizes_are_still_part_of_kernels():
    def plain(x):
        return x / (x.shape[0] * x.shape[1]) + (x.shape[0] + 1)

    compiled = bothways.compile(plain, backend="native", dynamic=True)
    for shape in ((3, 4), (5, 6), (7, 8)):
        assert same(compiled(torch.ones(shape)), plain(torch.ones(shape)))
    explanation = bothways.explain(compiled)(torch.ones(9, 10))
    assert len(explanation.programs) == 1
    assert "aten" not in explanation.generated[-1].texts["Python"]
    assert "C" in explanation.generated[-1].texts
