"""Generated flat programs do the same plainly and compiled: numbers, objects, tensors of all dtypes, gradients.

``make soak SEED=… COUNT=…`` runs as many others as one likes, each in one of the ways, by its seed; ``SWEEP=1`` in all.
"""

import os

import pytest
import soak_statements
import soak_statements_checking
import soak_ways

from bothways.testing import difference

MORE = int(os.environ.get("BOTHWAYS_SOAK_COUNT", "200"))
FIRST = int(os.environ.get("BOTHWAYS_SOAK_SEED", "1000"))
SWEEP = bool(int(os.environ.get("BOTHWAYS_SOAK_SWEEP") or 0))
PACK = 4  # programs a test, one of each kind


def check(seed, ways):
    soak_ways.check(soak_statements.program(seed), soak_statements_checking, seed, ways)


@pytest.mark.parametrize("kind", range(PACK))
def test_generated_statements_do_the_same_compiled(kind):
    check(kind, [soak_ways.WAYS[kind]])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + MORE, PACK))
def test_more_generated_statements_do_the_same_compiled(first):
    soak_ways.few_collections()
    for seed in range(first, min(first + PACK, FIRST + MORE)):
        check(seed, soak_ways.WAYS if SWEEP else [soak_ways.in_turn(seed // PACK)])


@pytest.mark.parametrize("kind", range(PACK))
def test_programs_can_be_written(kind):
    for seed in range(kind, 40, PACK):
        compile(soak_statements.program(seed), "<soak>", "exec")


def test_expressions_inside_of_others_can_be_written():
    """Powers that are asked for a method, sets of dictionaries: programs of numbers which were no Python once."""
    for seed in range(2_200_000, 2_200_900, PACK):
        compile(soak_statements.program(seed), "<soak>", "exec")


SOURCE = """import torch
GIVEN = [1, 2]
HELD = {"a": [0.0]}
STATE = ["HELD"]
def make(call):
    return torch.ones(2, 3), torch.ones(2, 3).requires_grad_(), call
def target(a, b, n):
    return a * 1, b * 2, b.t(), n
"""
CHANGES = [
    "a.add_(1)", "HELD['a'].append(1)", "HELD['a'][0] = -0.0", "HELD['b'] = HELD['a']", "torch.rand(1)", "print(n)",
    "n = float(n)", "a = a.t().contiguous().t()", "b = b.detach()", "b = b + b.detach() - b", "raise ValueError(n)",
    "a.tag = n", "b.register_hook(lambda g: g * 2)", "n = True", "b = b.clone()", "a = a[:1]",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_call_shows_is_compared(change):
    """The comparison is not blind to any of these."""
    plain = soak_statements_checking.plainly(SOURCE)
    assert difference(plain, soak_statements_checking.plainly(SOURCE)) is None
    other = soak_statements_checking.plainly(SOURCE.replace("    return a", f"    {change}\n    return a"))
    assert difference(plain, other) is not None
