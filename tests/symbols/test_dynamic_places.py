"""Elements at places that change from call to call, in whatever index: one program for the first place, one for all."""

import pytest
import torch
from torch import nn

import bothways
from bothways.testing import same

ROWS, MASK = torch.tensor([4, 1, 3]), torch.tensor([True, False, True, True, False, False])

READ = {
    "rows": lambda x, n: x[ROWS, n],
    "rows, and a new dimension": lambda x, n: x[ROWS, n, None],
    "a new dimension first": lambda x, n: x[None, ROWS, n],
    "the place first": lambda x, n: x[n, ROWS],
    "between rows and columns": lambda x, n: x[ROWS, n, ROWS],
    "two places": lambda x, n: x[n, ROWS, n - 1],
    "behind all others": lambda x, n: x[ROWS, ..., n],
    "before all others": lambda x, n: x[n, ..., ROWS],
    "with a slice": lambda x, n: x[1:4, n, ::2],
    "with a slice up to it": lambda x, n: x[n, :n],
    "with a plain number": lambda x, n: x[-1, n, None],
    "from the end": lambda x, n: x[ROWS, -n],
    "rows in two dimensions": lambda x, n: x[ROWS.view(3, 1), n, ROWS],
}


def written(key, value):
    def function(x, n):
        y = x * 1
        y[key(n)] = value(y, n)
        return y

    return function


WRITTEN = {
    "a number": written(lambda n: (slice(None), n), lambda y, n: 0.5),
    "a number at one place": written(lambda n: n, lambda y, n: 2),
    "a number to rows": written(lambda n: (ROWS, n), lambda y, n: 0.5),
    "a tensor to rows": written(lambda n: (ROWS, n), lambda y, n: y[ROWS, n - 1] * 2),
    "a tensor of another kind": written(lambda n: (slice(None), n), lambda y, n: torch.arange(6)),
    "one number for all": written(lambda n: (slice(1, 3), n, ...), lambda y, n: y.sum()),
    "to a slice": written(lambda n: (n, slice(None, 3)), lambda y, n: y[n, 1:4] * 2),
}


@pytest.mark.parametrize("name", [*READ, *WRITTEN])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_an_index_with_a_place_that_changes_has_two_programs(name, wants_gradient):
    function = {**READ, **WRITTEN}[name]
    compiled = bothways.compile(lambda x, n: function(x.sin(), n).cos(), fullgraph=True)
    torch.manual_seed(0)
    for n in range(2, 5):  # the last place of all is another matter to who writes there
        # Doubles: the order in which a device sums is seen in the gradients of a sum that is written to many places.
        own, other = (torch.randn(6, 6, 6, dtype=torch.double, requires_grad=wants_gradient) for _ in range(2))
        other.data.copy_(own.data)
        expected, found = function(own.sin(), n).cos(), compiled(other, n)
        assert same(found, expected, tol=1e-5) and found.stride() == expected.stride()
        if wants_gradient:
            expected.sum().backward()
            found.sum().backward()
            assert same(other.grad, own.grad, tol=1e-5)
    assert len(bothways.history(compiled)) == 2


def test_a_place_that_is_not_there_is_eagers_error():
    def function(x, n):
        return x[ROWS, n] * 2

    compiled, x = bothways.compile(function), torch.randn(6, 4)
    for n in (2, 3):
        assert same(compiled(x, n), function(x, n))
    with pytest.raises(IndexError) as expected:
        function(x, 4)
    with pytest.raises(IndexError) as found:
        compiled(x, 4)
    assert str(found.value) == str(expected.value)


def test_a_mask_beside_a_place_that_changes():
    def function(x, n):
        return x[MASK, n].sum() + x[n, MASK].sum()

    compiled, x = bothways.compile(function), torch.randn(6, 6)
    for n in range(2, 6):
        assert same(compiled(x, n), function(x, n), tol=1e-5)


class Experts(nn.Module):
    """Each row goes to the expert that its gate prefers, which is asked for by its number."""

    def __init__(self, count):
        super().__init__()
        self.gate = nn.Linear(8, count)
        experts = [nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(count)]
        self.experts = nn.ModuleList(experts)

    def forward(self, x):
        shares = self.gate(x).softmax(dim=-1)
        chosen = shares.argmax(dim=-1)
        mixed = torch.zeros_like(x)
        for number in range(len(self.experts)):
            rows = (chosen == number).nonzero()[:, 0]
            if rows.numel():
                mixed = mixed.index_add(0, rows, self.experts[number](x[rows]) * shares[rows, number, None])
        return mixed


def test_more_experts_than_there_may_be_programs_are_all_compiled():
    torch.manual_seed(0)
    model = Experts(3 * bothways.config.recompile_limit)
    compiled = bothways.compile(model)
    for _ in range(4):
        x = torch.randn(256, 8)
        expected, found = model(x), compiled(x)
        assert same(found, expected, tol=1e-5)
        by_plain = torch.autograd.grad(expected.square().sum(), list(model.parameters()), allow_unused=True)
        by_compiled = torch.autograd.grad(found.square().sum(), list(model.parameters()), allow_unused=True)
        for one, other in zip(by_compiled, by_plain, strict=True):  # not every expert was asked
            assert one is other is None or same(one, other, tol=1e-4)
    assert "plain Python from now on" not in str(bothways.explain(compiled).details)
