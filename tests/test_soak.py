"""Generated programs do the same plainly and compiled: results, gradients, mutations, effects in order, exceptions.

``make soak SEED=… COUNT=…`` runs as many others as one likes.
"""

import os

import pytest
import soak_checking
import soaking

COUNT = 300
MORE = int(os.environ.get("BOTHWAYS_SOAK_COUNT", "200"))
FIRST = int(os.environ.get("BOTHWAYS_SOAK_SEED", "1000"))
PACK = 10  # programs a test


def backend_of(seed):
    """Most programs run with the backend that runs what was captured; the others differentiate and build as well."""
    return {0: "aot_eager", 5: "native"}.get(seed % 20, "eager")


def check(seed):
    source, backend = soaking.program(seed), backend_of(seed)
    try:
        found = soak_checking.disagreement(source, backend)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    assert found is None, f"seed {seed}, backend {backend}\n{source}\n{found}"


@pytest.mark.parametrize("first", range(0, COUNT, PACK))
def test_generated_programs_are_the_same_compiled(first):
    for seed in range(first, first + PACK):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + MORE, PACK))
def test_more_generated_programs_are_the_same_compiled(first):
    for seed in range(first, min(first + PACK, FIRST + MORE)):
        check(seed)


def test_a_program_that_differs_is_made_smaller():
    source = "a = 1\nfor i in range(a):\n    if a:\n        b = 2\n        c = 3\n    else:\n        d = 4\n"
    assert soak_checking.smaller(source, lambda text: "b = 2" in text) == "b = 2"
