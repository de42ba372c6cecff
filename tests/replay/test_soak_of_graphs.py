"""Some programs of the soak of replays; ``make soak-graphs`` runs as many as one likes."""

import pytest
import soak_graphs
from replaying import graphs


@pytest.mark.parametrize("seed", [5, 11])
def test_programs_with_all_that_happens_in_between(seed):
    with graphs():
        problem, _ = soak_graphs.program(seed, 12)
    assert not problem


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_programs(seed):
    with graphs():
        problem, _ = soak_graphs.program(seed, 20)
    assert not problem
