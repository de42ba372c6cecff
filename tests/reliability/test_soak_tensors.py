"""Generated programs on tensors do the same plainly and compiled: changes in place, views, dtypes, gradients, memory.

``make soak-tensors SEED=… COUNT=…`` runs as many others as one likes, each in one of the ways; ``SWEEP=1`` in all.
"""

import os

import pytest
import soak_checking
import soak_tensors
import soak_tensors_checking
import soak_ways

COUNT = 4
MORE = int(os.environ.get("BOTHWAYS_SOAK_COUNT", "200"))
FIRST = int(os.environ.get("BOTHWAYS_SOAK_SEED", "1000"))
SWEEP = bool(int(os.environ.get("BOTHWAYS_SOAK_SWEEP") or 0))
PACK = 4  # programs a test


def check(seed, ways):
    soak_ways.check(soak_tensors.program(seed), soak_tensors_checking, seed, ways)


@pytest.mark.parametrize("first", range(0, COUNT, PACK))
def test_generated_programs_on_tensors_are_the_same_compiled(first):
    for seed in range(first, first + PACK):
        check(seed, [soak_ways.WAYS[seed % len(soak_ways.WAYS)]])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + MORE, PACK))
def test_more_generated_programs_on_tensors_are_the_same_compiled(first):
    soak_ways.few_collections()
    for seed in range(first, min(first + PACK, FIRST + MORE)):
        check(seed, soak_ways.WAYS if SWEEP else [soak_ways.in_turn(seed)])


def test_programs_change_tensors_in_every_way():
    sources = "\n".join(soak_tensors.program(seed) for seed in range(60))
    for written in (".copy_(", ".add_(", ".mul_(", ".index_put_(", "masked_fill_(", "] = ", "] += ", "out=", ".data"):
        assert written in sources, written


def test_what_tensors_become_is_compared():
    """The comparison is not blind: another value of an argument, other memory, a gradient, a random number."""
    source = (
        "import torch\nSIZES = [(3, 4, 2), (2, 5, 2)]\nWIDTH = torch.float64\n"
        "def inputs(seed, n, m, k):\n    return torch.ones(n, m), torch.ones(n, m).requires_grad_()\n"
        "def target(a, b):\n    return a * b, b.exp()\n"
    )
    plain = soak_tensors_checking.plainly(source)
    changes = (
        "a.add_(1)",
        "a.data.add_(1)",
        "torch.rand(1)",
        "b = b.detach()",
        "b = b * 2 - b.detach()",
        "return a, b.exp()",
    )
    for change in changes:
        other = soak_tensors_checking.plainly(source.replace("    return a * b", f"    {change}\n    return a * b"))
        assert soak_tensors_checking.first_difference(plain, other, 1e-8), change


def test_a_program_on_tensors_can_be_made_smaller():
    assert "inputs" in soak_checking.smaller(soak_tensors.program(0), lambda text: "def inputs" in text)
