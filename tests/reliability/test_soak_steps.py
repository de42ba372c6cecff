"""Generated training steps do the same plainly and compiled: parameters, gradients, optimizers, hooks, random numbers.

``make soak-steps SEED=… COUNT=…`` runs as many others as one likes, each in one of the ways; ``SWEEP=1`` in all.
"""

import os

import pytest
import soak_checking
import soak_rounding
import soak_scripts
import soak_steps
import soak_training
import soak_ways
import torch

import bothways
from bothways.runtime import logs

COUNT = 6
MORE = int(os.environ.get("BOTHWAYS_SOAK_COUNT", "300"))
FIRST = int(os.environ.get("BOTHWAYS_SOAK_SEED", "1000"))
SWEEP = bool(int(os.environ.get("BOTHWAYS_SOAK_SWEEP") or 0))
PACK = 3  # programs a test


def program(seed):
    """Every other one is by a script."""
    return (soak_scripts if seed % 2 else soak_steps).program(seed // 2)


def check(source, seed, ways):
    soak_ways.check(source, soak_training, seed, ways)


@pytest.mark.parametrize("first", range(0, COUNT, PACK))
def test_generated_training_steps_are_the_same_compiled(first):
    for seed in range(first, first + PACK):
        check(soak_steps.program(seed), seed, [soak_ways.WAYS[seed % len(soak_ways.WAYS)]])


@pytest.mark.parametrize("seed", [2, 19, 33, 57])
def test_generated_scripts_are_the_same_compiled(seed):
    check(soak_scripts.program(seed), seed, [soak_ways.WAYS[seed % len(soak_ways.WAYS)]])


# Those that were otherwise once, beside the smallest programs that show it.
FOUND = (("steps", 12196), ("scripts", 22265), ("scripts", 22274))


@pytest.mark.parametrize("kind, seed", FOUND)
def test_programs_that_differed_once_are_the_same_compiled(kind, seed):
    check({"steps": soak_steps, "scripts": soak_scripts}[kind].program(seed), seed, [soak_ways.LOOPS])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + MORE, PACK))
def test_more_generated_training_steps_are_the_same_compiled(first):
    soak_ways.few_collections()
    for seed in range(first, min(first + PACK, FIRST + MORE)):
        check(program(seed), seed, soak_ways.WAYS if SWEEP else [soak_ways.in_turn(seed)])


def test_steps_can_be_written_in_every_way():
    sources = [soak_steps.program(seed) for seed in range(300)]
    for source in sources:
        compile(source, "<soak>", "exec")
    tables = (soak_steps.STEADY, soak_steps.KEEN, soak_steps.SCHEDULES, soak_steps.AUTOCASTS)
    for row in (row for table in tables for row in table if row[1] is not None):
        assert any(row[1].split("(")[0] in source for source in sources), row


def test_scripts_can_be_written_and_trained():
    count = len(soak_scripts.SCRIPTS)
    for seed, script in enumerate(soak_scripts.SCRIPTS, soak_scripts.LAST // count * count + count):
        source = soak_scripts.program(seed)
        compile(source, "<soak>", "exec")
        assert script.above in source


def test_what_training_leaves_behind_is_compared():
    """The comparison is not blind: another learning rate, a hook that is not called, numbers drawn once more."""
    source = soak_steps.program(3)
    assert soak_training.disagreement(source) is None
    plain, again = soak_training.plainly(source), lambda: soak_training.plainly(source)
    for change in ("torch.rand(1)", "LOG.append('more')", "MODEL.last.weight.data.add_(0.1)"):
        changed = f"{source}\nold = between\ndef between(number):\n    old(number)\n    {change}\n"
        found = soak_training.training(changed)
        assert soak_rounding.beyond_rounding(plain, found, lambda: soak_rounding.rounded(again), 1e-6), change


def test_a_training_is_compared_until_it_runs_away():
    source = soak_steps.program(3)
    shown = soak_training.plainly(source)
    assert soak_training.steps_before_it_runs_away(shown) == len(shown)
    grown = f"{source}\nold = between\ndef between(number):\n    old(number)\n    MODEL.last.weight.data.mul_(1e8)\n"
    assert 1 < soak_training.steps_before_it_runs_away(soak_training.plainly(grown)) < len(shown)


def test_a_training_that_differs_can_be_made_smaller():
    assert "between" in soak_checking.smaller(soak_steps.program(0), lambda text: "def between" in text)


def test_a_graph_that_raises_where_plain_python_does_not_is_noticed():
    """Results are right then, and yet no call of the function is compiled."""

    def double(x):
        return x * 2

    with soak_ways.taken(soak_ways.EAGER) as failures:
        function = bothways.compile(double, backend="eager")
        function(torch.ones(2))
        assert soak_ways.mistake(function, failures, catches=False) is None
        logs.ran_plainly_after(RuntimeError("not today"))
    assert "not today" in soak_ways.mistake(function, failures, catches=False)
    assert soak_ways.mistake(function, failures, catches=True) is None
