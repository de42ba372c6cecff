"""``einops`` inside compiled functions; its cached recipes are facts. Skipped without it."""

import functools

import pytest
import torch

import bothways
from bothways.testing import CompileCounter, same

einops = pytest.importorskip("einops")

X = torch.arange(24.0).reshape(3, 8)


def function(x):
    return (
        einops.rearrange(x, "a (b c) -> b a c", b=2),
        einops.reduce(x, "a (b c) -> a c", "mean", c=4),
        einops.repeat(x, "a b -> a b c", c=2),
        einops.einsum(x, x, "a b, c b -> a c"),
        einops.pack([x, x], "a *"),
    )


def test_patterns():
    function(X)  # einops looks for its backends when it meets a tensor for the first time
    counter = CompileCounter()
    compiled = bothways.compile(function, backend=counter, fullgraph=True)
    for _ in range(2):
        assert same(compiled(X), function(X))
    assert counter.frame_count == 1
    for size in (2, 3, 5, 7):
        x = torch.randn(size, 8)
        assert same(compiled(x), function(x))
    assert counter.frame_count == 2


def summed(x, axes):
    return x.sum(axes)


@pytest.mark.parametrize("reduction", [summed, functools.partial(torch.var, unbiased=False), torch.amax])
def test_reductions_that_are_functions(reduction):
    def reduced(x):
        own = einops.reduce(x, "a b -> a 1", functools.partial(torch.var, unbiased=False))
        added = einops.reduce(x, "a b -> b", lambda t, axes: t.sum(axes))
        return own, einops.reduce(x, "a (b c) -> a c", reduction, c=4), added

    counter = CompileCounter()
    compiled = bothways.compile(reduced, backend=counter, fullgraph=True)
    for size in (3, 3, 4, 5, 6):
        x = torch.randn(size, 8)
        assert same(compiled(x), reduced(x))
    assert counter.frame_count == 2


def test_layers():
    from einops.layers.torch import Rearrange, Reduce

    layers = torch.nn.Sequential(Rearrange("a (b c) -> b a c", b=2), Reduce("b a c -> b c", "max"))
    compiled = bothways.compile(layers, backend="eager", fullgraph=True)
    assert same(compiled(X), layers(X))


def test_a_wrong_pattern_raises_as_eager_does():
    def wrong(x):
        return einops.rearrange(x, "a (b c) -> b a c", b=5)

    with pytest.raises(einops.EinopsError):
        bothways.compile(wrong, backend="eager")(X)
