"""Sizes as expressions: normal forms, what follows from what is known, what is noted as assumed."""

import itertools
import random

import pytest
import torch

from bothways.symbols import Environment, Expression, hint, size
from bothways.symbols.layouts import symbolic_strides


def two(environment, first=5, second=7, least=2):
    return [size(environment, Expression.atom(environment.symbol(value, least))) for value in (first, second)]


def conditions(environment):
    return [str(condition) for condition in environment.conditions]


def test_equal_expressions_are_the_same():
    n, m = two(Environment())
    assert str((n + 1) * (n - 1)) == str(n * n - 1)
    assert str(n * m + m * n) == str(2 * m * n)
    assert n - n == 0 and type(n - n) is int


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda n, m: n * 4 // 4, "s0"),
        (lambda n, m: (n * 4 + 3) // 4, "s0"),
        (lambda n, m: n * m // m, "s0"),
        (lambda n, m: (n * m + m) // (n + 1), "s1"),
        (lambda n, m: (n * 4 + 3) % 4, "3"),
        (lambda n, m: n * 6 % 3, "0"),
        (lambda n, m: n % 2, "(s0 % 2)"),
        (lambda n, m: (n + 1) // 2, "((s0 + 1) // 2)"),
        (lambda n, m: n * 4 - 1, "s0 * 4 - 1"),
        (lambda n, m: max(n, 1), "s0"),
    ],
)
def test_how_expressions_read(result, text):
    environment = Environment()
    assert str(result(*two(environment))) == text
    assert not environment.conditions


@pytest.mark.parametrize(
    "question",
    [
        lambda n, m: n == 1,
        lambda n, m: n != 0,
        lambda n, m: n * m > n,
        lambda n, m: n * m - m >= 2,
        lambda n, m: n * 2 == 7,
        lambda n, m: n // 2 >= 1,
        lambda n, m: 0 <= n % 3 < 3,
        lambda n, m: n * n * m >= m,
    ],
)
def test_what_follows_is_not_assumed(question):
    environment = Environment()
    n, m = two(environment)
    expected = question(5, 7)
    assert bool(question(n, m)) == expected
    assert not environment.conditions


def test_what_does_not_follow_is_assumed_once():
    environment = Environment()
    n, m = two(environment)
    assert not n == m
    assert n + 2 == m
    assert n < 6
    assert n < 6 and n < 9 and not n == 8
    assert conditions(environment) == ["s0 != s1", "s0 + 2 == s1", "s0 < 6"]


def test_a_symbol_that_an_equation_gives_is_gone():
    environment = Environment()
    n, m = two(environment, 4, 8)
    assert n * 2 == m
    assert str(m * 3) == "s0 * 6"
    assert m // 2 == n and m % n == 0
    assert conditions(environment) == ["s0 * 2 == s1"]


def test_equal_products_are_one():
    environment = Environment()
    a, b = two(environment, 6, 4)
    c, d = two(environment, 3, 8)
    assert a * b == c * d
    assert str(c * d * 2) == str(a * b * 2)
    assert conditions(environment) == ["s0 * s1 == s2 * s3"]


def test_a_plain_number_is_a_specialised_symbol():
    environment = Environment()
    n, m = two(environment)
    assert list(range(n)) == [0, 1, 2, 3, 4]
    assert conditions(environment) == ["s0 == 5"]
    assert n * 2 == 10 and type(n * 2) is int


def test_dividing_by_a_symbol_assumes_that_it_is_not_zero():
    environment = Environment()
    n, m = two(environment, least=-100)
    assert (n * m) // m == n
    assert conditions(environment) == ["s1 != 0"]
    zero, _ = two(Environment(), 0, least=-100)
    with pytest.raises(ZeroDivisionError, match="integer modulo by zero"):
        5 % zero


def test_what_is_assumed_later_is_forgotten():
    environment = Environment()
    n, m = two(environment)
    with environment.later({symbol: 9 for symbol in environment.values}) as found:
        assert n == m
        assert str(n + m) == "s0 * 2"
    assert list(map(str, found)) == ["s0 == s1"]
    assert not environment.conditions
    assert str(n + m) == "s0 + s1"
    assert not n == m


def test_fractions_keep_the_order_of_their_operations():
    environment = Environment()
    n, _ = two(environment)
    x = size(environment, Expression.atom(environment.symbol(0.1, -float("inf"))))
    found = (x * n + 0.2) * 3 - x / n
    assert found.node.hint == (0.1 * 5 + 0.2) * 3 - 0.1 / 5
    assert x < 0.5
    assert float(x) == 0.1
    assert conditions(environment) == ["f2 < 0.5", "f2 == 0.1"]


def test_layouts_follow_from_sizes():
    environment = Environment()
    n, m = two(environment)
    with_symbols = torch.Size([n, 3, m])
    sizes = (5, 3, 7)
    for order in itertools.permutations(range(3)):
        tensor = torch.empty([sizes[dim] for dim in order]).permute([order.index(dim) for dim in range(3)])
        strides = symbolic_strides(with_symbols, tensor.shape, tensor.stride())
        with environment.later({symbol: value for symbol, value in zip(environment.values, (2, 9), strict=True)}):
            other = torch.empty([(2, 3, 9)[dim] for dim in order]).permute([order.index(dim) for dim in range(3)])
            assert [hint(stride) for stride in strides] == list(other.stride())


def test_random_expressions_are_what_python_computes():
    numbers = random.Random(0)
    for _ in range(300):
        values = [numbers.randint(2, 9) for _ in range(3)]
        environment = Environment()
        symbols = [size(environment, Expression.atom(environment.symbol(value, 2))) for value in values]
        text = _expression(numbers, 4)
        expected = eval(text, dict(zip("abc", values, strict=True)))
        found = eval(text, dict(zip("abc", symbols, strict=True)))
        assert hint(found) == expected, text
        for question in ("<", "==", ">="):
            bound = numbers.randint(-20, 20)
            assert bool(eval(f"x {question} {bound}", {"x": found})) == eval(f"x {question} {bound}", {"x": expected})
        # What was decided holds for the values it was decided by.
        names = dict(zip(("s0", "s1", "s2"), values, strict=True))
        assert all(eval(str(condition), {"max": max, "min": min, **names}) for condition in environment.conditions)


def _expression(numbers, depth):
    if depth == 0 or numbers.random() < 0.2:
        return numbers.choice(["a", "b", "c", str(numbers.randint(1, 5))])
    one, other = _expression(numbers, depth - 1), _expression(numbers, depth - 1)
    operation = numbers.choice(["+", "-", "*", "//", "%"])
    return f"({one} {operation} {numbers.choice('abc') if operation in ('//', '%') else other})"
