"""Generated training steps do the same plainly and compiled: parameters, gradients, optimizers, hooks, random numbers.

``make soak-steps SEED=… COUNT=…`` runs as many others as one likes, each with every backend.
"""

import os

import pytest
import soak_checking
import soak_steps
import soak_training

COUNT = 6
MORE = int(os.environ.get("BOTHWAYS_SOAK_COUNT", "300"))
FIRST = int(os.environ.get("BOTHWAYS_SOAK_SEED", "1000"))
SWEEP = bool(int(os.environ.get("BOTHWAYS_SOAK_SWEEP") or 0))
BACKENDS = ("eager", "aot_eager", "native")
PACK = 3  # programs a test


def check(seed, backends):
    source = soak_steps.program(seed)
    for backend in backends:
        try:
            found = soak_training.disagreement(source, backend)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        assert found is None, f"seed {seed}, backend {backend}\n{source}\n{found}"


@pytest.mark.parametrize("first", range(0, COUNT, PACK))
def test_generated_training_steps_are_the_same_compiled(first):
    for seed in range(first, first + PACK):
        check(seed, [BACKENDS[seed % len(BACKENDS)]])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + MORE, PACK))
def test_more_generated_training_steps_are_the_same_compiled(first):
    for seed in range(first, min(first + PACK, FIRST + MORE)):
        check(seed, BACKENDS if SWEEP else [BACKENDS[seed % len(BACKENDS)]])


def test_steps_can_be_written_in_every_way():
    sources = [soak_steps.program(seed) for seed in range(300)]
    for source in sources:
        compile(source, "<soak>", "exec")
    tables = (soak_steps.STEADY, soak_steps.KEEN, soak_steps.SCHEDULES, soak_steps.AUTOCASTS)
    for row in (row for table in tables for row in table if row[1] is not None):
        assert any(row[1].split("(")[0] in source for source in sources), row


def test_what_training_leaves_behind_is_compared():
    """The comparison is not blind: another learning rate, a hook that is not called, numbers drawn once more."""
    source = soak_steps.program(3)
    assert soak_training.disagreement(source) is None
    plain = soak_training.training(source)
    for change in ("torch.rand(1)", "LOG.append('more')", "MODEL.last.weight.data.add_(0.1)"):
        changed = f"{source}\nold = between\ndef between(number):\n    old(number)\n    {change}\n"
        assert soak_training.first_difference(plain, soak_training.training(changed), 1e-6), change


def test_a_training_that_differs_can_be_made_smaller():
    assert "between" in soak_checking.smaller(soak_steps.program(0), lambda text: "def between" in text)
