"""What names are unpacked from is asked for one item more than there are names; an iterator keeps the others."""

import itertools

import pytest
import torch
from agreeing import agree

log = []


def generator(count):
    try:
        for index in range(count):
            yield index
    except GeneratorExit:
        log.append("left")
        raise
    finally:
        log.append("cleaned up")


def two(x, items):
    try:
        first, second = items
    except ValueError as error:
        log.append("refused")
        return str(error), x + 1
    return first, second, x + 1


def one_and_others(x, items):
    first, *others = items
    return first, others, x + 1


MADE = {
    "an iterator": lambda: iter([1, 2, 3, 4, 5]),
    "as many": lambda: iter([1, 2]),
    "without end": itertools.count,
    "too few": lambda: iter([1]),
    "a map": lambda: map(abs, [1, 2, 3, 4]),
    "a list": lambda: [1, 2, 3],
    "a dict": lambda: {1: 2, 3: 4, 5: 6},
    "a text": lambda: "abc",
}


@pytest.mark.parametrize("made", MADE)
def test_what_is_left_of_it(made):
    def observe(function, call):
        log.clear()
        items = MADE[made]()
        result = function(torch.ones(2), items)
        left = list(itertools.islice(items, 3)) if hasattr(items, "__next__") else None
        return {"result": result, "left": left, "log": list(log)}

    agree(two, observe, 1, 2)


def test_iterators_that_the_function_makes():
    def program(x):
        items = iter([1, 2, 3, 4, 5])
        try:
            first, second = items
        except ValueError as error:
            return str(error), list(items), x + 1

    agree(program, lambda function, call: {"result": function(torch.ones(2))}, 1, 2)


def test_a_generator_is_left_before_the_handler_runs():
    def program(x):
        return two(x, generator(3)), two(x, generator(2))

    def observe(function, call):
        log.clear()
        return {"result": function(torch.ones(2)), "log": list(log)}

    agree(program, observe, 1, 2)


def test_a_star_takes_all_that_there_is():
    agree(one_and_others, lambda function, call: {"result": function(torch.ones(2), iter([1, 2, 3]))}, 1, 2)


KEYS = {
    "a frozen set": frozenset([3]),
    "one in a tuple": (1, frozenset([2])),
    "a tuple": (1, "a"),
    "a text": "a",
}


@pytest.mark.parametrize("key", KEYS)
def test_the_error_about_a_key_carries_the_key(key):
    def program(x, key):
        try:
            {1: 2}[key]
        except KeyError as error:
            texts = str(error), repr(error)
        try:
            set().remove(key)
        except KeyError as error:
            return texts, error.args, x + 1

    agree(program, lambda function, call: {"result": repr(function(torch.ones(2), KEYS[key]))}, 1, 2)
