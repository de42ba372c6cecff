"""Recursion deeper than capture follows: plain Python does it, and the function remembers."""

import sys

import pytest
import torch

import bothways
from bothways import config

BACKENDS = ("eager", "aot_eager", "native")
X = torch.arange(3.0)


def itself(x, n):
    return x if n == 0 else itself(x + 1, n - 1)


def even(x, n):
    return x if n == 0 else odd(x + 1, n - 1)


def odd(x, n):
    return x if n == 0 else even(x - 0.5, n - 1)


def calls_it(x, n):
    return itself(x * 2, n) * 3


def closing(x, n):
    def inner(y, k):
        return y if k == 0 else inner(y + n, k - 1)

    return inner(x, n) - 1


class Tree(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.child = Tree(depth - 1) if depth else None

    def forward(self, x):
        return x if self.child is None else self.child(x + 1)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("depth", [30, 300, 800])
@pytest.mark.parametrize("function", [itself, even, calls_it, closing])
def test_deep_recursion_is_what_it_is_in_plain_python(function, depth, backend):
    compiled = bothways.compile(function, backend=backend)
    for x in (X, X, X * 2):
        assert torch.equal(compiled(x, depth), function(x, depth))
    captures = len(bothways.history(compiled))
    assert torch.equal(compiled(X, depth), function(X, depth))
    assert len(bothways.history(compiled)) == captures <= 6, "it is remembered"


def test_a_shallow_program_from_before_is_still_used():
    compiled = bothways.compile(itself, backend="eager", dynamic=False)
    for depth in (5, 300, 5, 300, 7):
        assert torch.equal(compiled(X, depth), itself(X, depth))
    assert len(bothways.explain(compiled).programs) == 1
    assert len(bothways.history(compiled)) == 2


def test_a_decorated_function_that_calls_itself():
    @bothways.compile(backend="eager")
    def decorated(x, n):
        return x if n == 0 else decorated(x + 1, n - 1)

    for depth in (10, 300, 300, 10):
        assert torch.equal(decorated(X, depth), X + depth)
    assert len(bothways.history(decorated)) <= 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules_nested_deeply(backend):
    tree = Tree(120)
    compiled = bothways.compile(tree, backend=backend)
    for _ in range(3):
        assert torch.equal(compiled(X), X + 120)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("left", [20, 60, 120, 200, 260, 350])
def test_a_first_call_with_little_stack_left(left, backend):
    """A capture that has no room is put off."""
    compiled = bothways.compile(lambda x: torch.sin(x) + calls_it(x, 3), backend=backend)
    expected = torch.sin(X) + calls_it(X, 3)

    def depth():
        count, frame = 0, sys._getframe()
        while frame is not None:
            count, frame = count + 1, frame.f_back
        return count

    def down(n):
        return compiled(X) if n <= 0 else down(n - 1)

    assert torch.equal(down(sys.getrecursionlimit() - depth() - left), expected)
    for _ in range(2):
        assert torch.equal(compiled(X), expected)
    assert len(bothways.explain(compiled).programs) == 1


def test_fullgraph_still_says_where():
    with pytest.raises(bothways.errors.Unsupported) as raised, config.patch(inline_depth_limit=20):
        bothways.compile(itself, backend="eager", fullgraph=True)(X, 50)
    assert raised.value.break_.code == "too_deep"
