"""Functions behind ``functools.lru_cache`` that make tensors: masks, positions, frequencies."""

import functools

import pytest
import torch
from agreeing import agree

import bothways
from bothways.testing import same

BACKENDS = ["eager", "aot_eager", "native"]




@pytest.mark.parametrize("backend", BACKENDS)
def test_they_are_made_once_and_are_part_of_no_graph(backend):
    @functools.cache
    def causal(size):
        return torch.full((size, size), float("-inf")).triu(1)

    def attention(x):
        return (x @ x.mT + causal(x.shape[-2])).softmax(-1) @ x

    x = torch.randn(2, 4, 3, requires_grad=True)

    def observe(function, call):
        x.grad = None
        result = function(x)
        result.square().sum().backward()
        return {"result": result, "gradient": x.grad, "misses": causal.cache_info().misses}

    agree(attention, observe, 1, 2, 3, backend=backend, programs=1, fullgraph=True, reset=causal.cache_clear)


def test_several_tensors_with_keywords():
    @functools.cache
    def rotary(size, *, base):
        angles = torch.outer(torch.arange(size), base ** -torch.linspace(0, 1, 2))
        return angles.cos(), angles.sin(), size

    def turned(x):
        cos, sin, size = rotary(4, base=10.0)
        return x * cos + x.flip(-1) * sin, size, rotary(4, base=10.0)[0] is cos

    compiled = bothways.compile(turned, backend="eager", fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 2)
        assert same(compiled(x), turned(x))
    assert compiled(x)[0] is not turned(x)[0] and rotary.cache_info().misses == 1


def test_what_was_forgotten_is_made_again():
    @functools.lru_cache(maxsize=1)
    def ones(size):
        return torch.ones(size)

    def function(x):
        return x + ones(3)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for number in range(3):
        x = torch.full((3,), float(number))
        assert same(compiled(x), x + 1)
        assert ones.cache_info().misses == 1
        ones.cache_clear()


def test_what_is_remembered_may_be_changed_and_returned():
    @functools.cache
    def buffer(size):
        return torch.zeros(size)

    def function(x):
        kept = buffer(3)
        kept.add_(x)
        return kept

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for number in (1.0, 2.0, 3.0):
        result = compiled(torch.full((3,), number))
        assert result is buffer(3)
    assert same(buffer(3), torch.full((3,), 6.0))


def test_random_numbers_and_effects_are_left_to_python():
    @functools.cache
    def noise(size):
        return torch.rand(size)

    def function(x):
        return torch.rand(2), x + noise(2), torch.rand(2)

    torch.manual_seed(0)
    expected = [function(torch.ones(2)) for _ in range(3)]
    noise.cache_clear()
    torch.manual_seed(0)
    compiled = bothways.compile(function, backend="eager")
    assert same([compiled(torch.ones(2)) for _ in range(3)], expected)
