"""What ``math`` works out of sizes that change: roots, logarithms, parts that are rounded. One program serves them."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree

SIZES = [(7, 5), (7, 5), (9, 5), (11, 8), (20, 6), (14, 14)]


def scaled(x):
    return x / math.sqrt(x.shape[-1]) * math.log(x.shape[0]) + math.exp(-x.shape[0] / 7)


def by_all_sizes(x):
    return x / math.sqrt(x.numel()), x * math.hypot(x.shape[0], x.shape[1]), x / math.sqrt(math.prod(x.shape))


def kept_and_masked(x):
    kept = int(x.shape[0] * (1 - 0.6))
    return x[:kept].sum(0), x[kept:] * 2, kept


def halves(x):
    middle = math.ceil(x.shape[0] / 2)
    return x[:middle].exp(), torch.zeros(middle) + x[:middle, 0], x[math.floor(x.shape[0] / 2) :].mean()


def padded(x):
    return F.pad(x, (0, 0, 0, math.ceil(x.shape[0] / 4) * 4 - x.shape[0])).view(-1, 4, x.shape[1]).mean(1)


def resized(x):
    return F.interpolate(x[None, None], size=(int(x.shape[0] * 1.5), round(x.shape[1] * 0.7)))


def worked_out_twice(x):
    return x[: math.ceil(x.shape[0] / 2)] + x[: (x.shape[0] + 1) // 2] * math.isqrt(x.shape[1] * 9)


def pairs_and_the_rest(x):
    pairs, rest = divmod(x.shape[0], 2)
    return x[: pairs * 2].reshape(pairs, 2, x.shape[1]).sum(1), rest, divmod(x.shape[1], -3)


def of_each_example(x):
    return torch.vmap(lambda row: (row / math.sqrt(row.shape[0])).softmax(-1) / x.shape[0])(x)


def observe(function, size):
    x = torch.linspace(-1, 1, math.prod(size)).reshape(size).requires_grad_()
    result = function(x)
    parts = result if isinstance(result, tuple) else (result,)
    sum(part.square().sum() for part in parts if isinstance(part, torch.Tensor)).backward()
    return {"result": result, "gradient": x.grad}


PROGRAMS = [
    scaled, by_all_sizes, kept_and_masked, halves, resized, worked_out_twice, pairs_and_the_rest, of_each_example,
]  # fmt: skip


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_program_serves_all_sizes(program, backend):
    agree(program, observe, *SIZES, backend=backend, fullgraph=True, programs=3)
    agree(program, observe, *SIZES, backend=backend, fullgraph=True, dynamic=True, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [*PROGRAMS, padded], ids=lambda program: program.__name__)
def test_sizes_at_their_ends(program, backend):
    sizes = [(8, 8), (6, 3), (4, 4), (3, 3), (2, 5), (16, 2), (5, 1), (1, 4), (1, 1), (12, 9)]
    agree(program, observe, *sizes, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_function_refuses_is_raised(backend):
    def program(x):
        try:
            return x * math.log(x.shape[0] - 5) + math.sqrt(x.shape[0] - 5)
        except ValueError as error:
            return x, str(error)

    agree(program, lambda function, size: {"result": function(torch.ones(size))}, 8, 8, 9, 5, 4, 12, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_decisions_by_what_is_worked_out(backend):
    def program(x):
        rows = [x[k] for k in range(math.ceil(x.shape[0] / 4))]
        return torch.stack(rows) if math.sqrt(x.shape[0]) > 3 else x, {math.ceil(x.shape[0] / 4): 1}

    observed = lambda function, size: {"result": function(torch.arange(2.0 * size).view(size, 2))}
    agree(program, observed, 8, 8, 9, 10, 12, 13, 7, backend=backend)
