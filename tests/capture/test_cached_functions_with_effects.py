"""Functions behind ``functools.lru_cache`` that do more than compute: once, at their moment, as Python has it."""

import functools

import pytest
import torch
from agreeing import agree
from torch.utils.checkpoint import checkpoint

log = []


@functools.lru_cache
def cached(n, times=1):
    log.append(("computed", n))
    return n * times


@functools.lru_cache
def told(n):
    log.append(f"computed {n}")
    return n + 1


def reset():
    cached.cache_clear()
    told.cache_clear()


def changed_before(x, n):
    log.append("begun")
    return cached(n), cached(n, times=2), x + 1


def changed_by_an_object(x, n):
    log.append("begun")
    log.pop()
    return cached(n), x * 2


def makes_a_text(x, n):
    log.append("begun")
    return told(n), x + 1


def breaks_afterwards(x, n):
    log.append("begun")
    result = cached(n)
    print(end="")
    return result, x + 1


@pytest.mark.parametrize("program", [changed_before, changed_by_an_object, makes_a_text, breaks_afterwards])
def test_it_is_done_once_and_after_what_comes_before(program):
    def observe(function, number):
        log.clear()
        return {"result": function(torch.ones(2), number), "log": list(log)}

    agree(program, observe, 4, 4, 3, 2, 4, 3, reset=reset)


def test_what_is_recomputed_for_a_backward_is_done_again():
    weight = torch.ones(2, requires_grad=True)

    def inner(t):
        log.append("inner")
        return t.sin() * weight

    def program(x):
        log.append("begun")
        return checkpoint(inner, x, use_reentrant=False)

    def observe(function, call):
        log.clear()
        weight.grad = None
        result = function(torch.ones(2))
        before = list(log)
        result.sum().backward()
        return {"result": result, "before": before, "after": list(log), "gradient": weight.grad}

    agree(program, observe, 1, 2)
