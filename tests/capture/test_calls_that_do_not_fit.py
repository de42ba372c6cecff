"""Functions that capture knows, called with what they do not take: Python's own error, in the user's handler."""

import pytest
import torch
from programs import agree_by_repr

X = torch.arange(6.0).view(2, 3)


def raised(call, *args):
    """The error that a call ends in, or its result."""
    try:
        return call(*args)
    except Exception as error:
        return type(error), str(error)


CALLS = [
    lambda x, _: dict.fromkeys(),
    lambda x, _: {}.fromkeys(),
    lambda x, _: dict.fromkeys([1], 2, 3),
    lambda x, _: torch.tensor(),
    lambda x, _: torch.as_tensor(dtype=torch.float32),
    lambda x, _: torch.numel(),
    lambda x, _: torch.is_tensor(x, 1),
    lambda x, _: torch.is_grad_enabled(1),
    lambda x, _: torch.autograd.grad(),
    lambda x, _: torch.autograd.grad(x),
    lambda x, _: torch.autograd.backward(),
    lambda x, _: x.shape.numel(3),
    lambda x, _: iter(3, 4),
    lambda x, _: iter(range(2), []),
    lambda x, _: vars(1),
    lambda x, some: some.remove({5}),
    lambda x, some: some.intersection_update([1], 0),
    lambda x, some: some.difference_update([1], 0),
]


@pytest.mark.parametrize("call", CALLS)
def test_what_does_not_fit_raises_as_python_does(call):
    def f(x):
        some = {1, 2, frozenset([3])}
        return raised(call, x, some), some, x + 1

    agree_by_repr(f, X)


def test_what_fits_is_answered():
    def f(x):
        some = {1, 2, frozenset([3])}
        some.remove({3})
        some.discard({4})
        found = {3} in {frozenset([3])}
        some.intersection_update([1, 2], iter([1]))
        numbers = torch.numel(x), torch.numel(input=x), torch.is_tensor(x), x.shape.numel()
        return some, found, numbers, list(iter([4, 3].pop, 4)), dict.fromkeys("ab", 1), x + 1

    agree_by_repr(f, X)
