"""Functions behind ``functools.lru_cache`` whose arguments vary, and what Python remembers of those that do not."""

import functools

import pytest
import torch
from agreeing import agree

import bothways

factor = 3
log = []


@functools.lru_cache
def halves(n, *, extra=0):
    return [n // 2, n - n // 2 + extra]


@functools.lru_cache
def scaled(n):
    return n * factor


@functools.lru_cache
def spread(n):
    return (n * factor, {"n": n})


@functools.lru_cache
def called(function, n):
    log.append(n)
    return function(n)


@functools.lru_cache
def plan(function, n):
    return {"made by": function, "sizes": [n, n + 1]}


def reset():
    for function in (halves, scaled, spread, called, plan):
        function.cache_clear()


def sizes(*lengths):
    return [torch.randn(length, 6) for length in lengths]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_one_program_serves_all_sizes(backend):
    def parts(x):
        one, other = halves(x.shape[0], extra=0)
        return x[:one].sum(0), x.new_ones(other), halves(len(x), extra=x.shape[0] - len(x))[0]

    agree(parts, observed, *sizes(4, 4, 5, 6, 9), backend=backend, programs=2, fullgraph=True, reset=reset)


def observed(function, x):
    return {"result": function(x), "remembered": [spread.cache_info().currsize, called.cache_info().currsize]}


def test_a_result_that_is_changed_is_the_one_that_is_remembered():
    def grows(x):
        kept = halves(x.shape[0])
        kept.append(len(kept))
        return x * len(kept)

    def observe(function, x):
        return {"result": function(x), "remembered": list(halves(len(x)))}

    agree(grows, observe, *sizes(4, 4, 5, 6, 5, 6), reset=reset)


def test_a_result_that_is_returned_is_the_one_that_is_remembered():
    def returned(x):
        return x + 1, halves(x.shape[0])

    def observe(function, x):
        result, kept = function(x)
        return {"result": result, "kept": kept, "is it": kept is halves(len(x))}

    agree(returned, observe, *sizes(4, 4, 5, 6, 5), reset=reset)


@pytest.mark.parametrize("program", [lambda x: (x + scaled(2), scaled(2)), lambda x: x + spread(x.shape[0])[0]])
def test_what_is_remembered_stays_when_what_it_was_computed_from_changes(program):
    def observe(function, call):
        global factor
        x, factor = call
        return {"result": function(x)}

    calls = [(x, number) for x, number in zip(sizes(4, 4, 5, 4, 5, 7), (3, 4, 4, 5, 5, 5), strict=True)]
    agree(program, observe, *calls, reset=reset)


def test_an_object_that_was_made_just_now_is_known_by_no_cache():
    def with_its_own(x):
        double = functools.partial(int.__mul__, 2)
        given = plan(double, x.shape[0])
        return x[: given["sizes"][0]], plan(double, len(x)) is given, given["made by"] is double

    agree(with_its_own, observed, *sizes(4, 4, 5, 6), programs=2, fullgraph=True, reset=reset)


def test_effects_are_had_once_for_each_object():
    def told(x):
        def double(n):
            return 2 * n

        return x + called(double, 3), called(double, 3)

    def observe(function, x):
        log.clear()
        return {"result": function(x), "log": list(log)}

    agree(told, observe, *sizes(4, 4, 4), reset=reset)


def test_what_cannot_be_a_key_is_refused():
    def refused(x):
        try:
            return halves([1, 2])
        except TypeError as error:
            return x + 1, str(error)

    agree(refused, observed, *sizes(4, 4), reset=reset)


def test_arguments_are_told_apart_as_python_does():
    def told(x):
        return x + scaled(2), scaled(2.0), scaled(True), scaled(1), scaled(x.shape[0] * 1.0), scaled(x.shape[0])

    agree(told, observed, *sizes(4, 4, 5, 6), reset=reset)


def test_what_is_asked_often_is_worked_out_once():
    @functools.lru_cache
    def recipe(text):
        return [int(word) for word in text.split()]

    def repeated(x):
        for _ in range(5):
            x = x.repeat(recipe("1 1"))
        return x

    bothways.compile(repeated, backend="eager", fullgraph=True)(torch.ones(2, 2))
    assert (recipe.cache_info().misses, recipe.cache_info().hits) == (1, 0)
