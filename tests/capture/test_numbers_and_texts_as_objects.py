"""``a is b`` of numbers and texts: Python has one object of each small number, and of others as many as were made."""

import pytest
import torch
from agreeing import agree

X = torch.ones(2)


def compared(function, arguments):
    return {"results": function(X, *arguments)}


def both_from_outside(x, a, b):
    return x * 2, a is b, a is not b, a == b


def with_one_of_its_own(x, a, b):
    five, thousand, train = 5, 1000, "train"
    return x * 2, a is five, b is not thousand, a is train


def another(number):
    return type(number)(str(number))  # equal, and another object unless Python has one of each


K, TEXT = another(1000), "".join(["tr", "ain"])


@pytest.mark.parametrize("function", [both_from_outside, with_one_of_its_own])
@pytest.mark.parametrize(
    "calls",
    [
        [(K, K), (K, another(1000)), (another(1000), K), (K, K)],
        [(4, 5), (5, 5), (6, 7), (7, 7), (5, 6), (256, 256), (300, another(300)), (K, K), (K, another(1000)), (-6, -5)],
        [(1.5, 2.5), (2.5, another(2.5)), (1.25, 1.25), (3.5, another(3.5))],
        [(1j, 1j), (2j, another(2j)), (1j, 1j)],
        [("train", TEXT), ("train", "train"), (TEXT, TEXT), ("eval", TEXT)],
        [(float("nan"), float("nan")), (K, K)],
    ],
)
def test_numbers_and_texts_from_outside(function, calls):
    agree(function, compared, *calls, *calls)
    agree(function, compared, *calls, dynamic=True)


def test_sizes_are_made_anew_unless_they_are_small():
    def function(x, y):
        three = 3
        return x.sum() + y.sum(), x.shape[0] is y.shape[0], x.size(0) is x.shape[0], len(x) is three

    def observe(function, sizes):
        return {"results": function(*map(torch.ones, sizes))}

    agree(function, observe, (300, 300), (400, 400), (3, 3), (5, 5), (4, 3), (3, 300), (300, 300))


def test_numbers_that_are_computed_are_made_anew():
    def function(x, n):
        product, pair, seven = 500 * n, (1000, 2000), 7
        return x * 2, product is product, product is pair[0], pair[0] is pair[0], int("7") is seven

    agree(function, compared, (2,), (2,), (3,), (2,))


def test_looking_for_an_equal_number_asks_for_no_object():
    def function(x, rate, rates):
        return x * rate, rate in rates, rates.count(rate)

    agree(function, compared, (1.5, [1.5]), (another(1.5), [1.5]), (another(1.5), [another(1.5)]), programs=1)
