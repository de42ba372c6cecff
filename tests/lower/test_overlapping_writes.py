"""Writes to memory that several elements share, or that the operation reads as well: what eager refuses is refused, and
what it does is done.
"""

import pytest
import torch

import bothways
from bothways.grad.tracing.overlaps import shares_elements
from bothways.testing import CompileCounter, same

X = torch.arange(1.0, 5.0)


def rows(x):
    """Three rows that are one."""
    return (x * 2).reshape(1, 4).expand(3, 4)


def row_of_rows(x):
    y = rows(x)
    y[0].add_(1)
    return y


def item_of_rows(x):
    y = rows(x)
    y[0] = 7.0
    return y, y.sum()


def a_part_of_itself(x):
    y = x * 2
    y[1:].add_(y[:-1])
    return y


def halves(x):
    y = x * 2
    y[:2].add_(y[2:])
    return y


def columns(x):
    y = (x * 2).reshape(2, 2)
    y[:, 0].add_(y[:, 1])
    return y


def columns_that_meet(x):
    y = torch.arange(16.0).reshape(4, 4) * x
    y[:, 1:].add_(y[:, :-1])
    return y


def every_other(x):
    y = x * 2
    y[::2].mul_(y[1::2])
    return y


def an_input_shifted(x):
    x[1:].copy_(x[:-1])
    return x


def an_input_through_rows(x):
    x.reshape(1, 4).expand(3, 4)[0].mul_(3)
    return x


ONE, INDEX = torch.ones(3, 4), torch.tensor([0])
PROGRAMS = {
    "add": lambda x: rows(x).add_(1),
    "an input": lambda x: x.reshape(1, 4).expand(3, 4).add_(1),
    "copy": lambda x: rows(x).copy_(ONE),
    "zero": lambda x: rows(x).zero_(),
    "fill": lambda x: rows(x).fill_(2.0),
    "relu": lambda x: rows(x).relu_(),
    "a slice": lambda x: rows(x)[1:].add_(1),
    "strided": lambda x: (x * 2).as_strided((3, 2), (1, 1)).add_(1),
    "unfolded": lambda x: (x * 2).unfold(0, 2, 1).add_(1),
    "clamp": lambda x: rows(x).clamp_(0, 1),
    "addcmul": lambda x: rows(x).addcmul_(ONE, ONE),
    "index_add": lambda x: rows(x).index_add_(0, INDEX, ONE[:1]),
    "scatter": lambda x: rows(x).scatter_(0, torch.zeros(1, 4, dtype=torch.long), 2.0),
    "out": lambda x: torch.add(x, 1, out=rows(x)),
    "computed from it": lambda x: (x.expand(3, 4) * 2).add_(1).relu_(),
    **{
        program.__name__: program
        for program in (
            row_of_rows, item_of_rows, a_part_of_itself, halves, columns, columns_that_meet, every_other,
            an_input_shifted, an_input_through_rows,
        )
    },
}  # fmt: skip


def outcome(function, requires_grad):
    x = X.clone().requires_grad_(requires_grad)
    try:
        result = function(x * 1 if requires_grad else x)
        if not requires_grad:
            return result, x
        total = sum(part.sum() for part in (result if isinstance(result, tuple) else (result,)))
        return result, torch.autograd.grad(total, x)
    except RuntimeError as error:
        return str(error)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_writes(name, backend, requires_grad):
    program = PROGRAMS[name]
    compiled = bothways.compile(program, backend=backend)
    for _ in range(2):
        assert same(outcome(program, requires_grad), outcome(compiled, requires_grad))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_errors_are_caught_where_people_catch_them(backend):
    def program(x):
        y = (x * 2).reshape(1, -1).expand(3, -1)
        try:
            y += 1
        except RuntimeError:
            return y[0] - 1
        return y

    compiled = bothways.compile(program, backend=backend)
    for x in (X, X.clone().requires_grad_(), X.clone().requires_grad_() * 1):
        for _ in range(2):
            assert same(compiled(x), program(x))


@pytest.mark.parametrize("given", [1, 0.0, None, "yes"])
def test_what_requires_grad_takes_no_other_way(given):
    def program(x):
        return (x * 2).detach().requires_grad_(given)

    for function in (program, bothways.compile(program)):
        with pytest.raises(TypeError, match="must be bool"):
            function(X)


@pytest.mark.parametrize("program", [columns, every_other, halves])
def test_parts_that_do_not_meet_are_compiled(program):
    counter = CompileCounter()
    backend = bothways.backends.aot(fw_compiler=counter)
    assert same(bothways.compile(program, backend=backend)(X.clone()), program(X.clone()))
    assert counter.frame_count == 1


def test_which_tensors_share_elements():
    x = torch.zeros(4, 4)
    assert not any(map(shares_elements, (x, x.t(), x[::2, 1:], x[:0], x[0, 0], x.reshape(1, 16).expand(1, 16))))
    assert all(map(shares_elements, (x[:1].expand(2, 4), x.as_strided((3, 2), (1, 1)), x.flatten().unfold(0, 2, 1))))
