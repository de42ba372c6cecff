"""Generated functions that are called in many ways do the same plainly and compiled, all calls of one.

``make soak SEED=… COUNT=…`` runs as many others as one likes, each in one of the ways, by its seed; ``SWEEP=1`` in all.
"""

import os

import pytest
import soak_calls
import soak_calls_checking
import soak_ways

from bothways.testing import difference

COUNT = 3
MORE = int(os.environ.get("BOTHWAYS_SOAK_COUNT", "200"))
FIRST = int(os.environ.get("BOTHWAYS_SOAK_SEED", "1000"))
SWEEP = bool(int(os.environ.get("BOTHWAYS_SOAK_SWEEP") or 0))
PACK = 4  # programs a test


def check(seed, ways):
    soak_ways.check(soak_calls.program(seed), soak_calls_checking, seed, ways)


@pytest.mark.parametrize("seed", range(COUNT))
def test_functions_that_are_called_in_many_ways_do_the_same_compiled(seed):
    check(seed, [soak_ways.WAYS[seed]])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + MORE, PACK))
def test_more_functions_that_are_called_in_many_ways_do_the_same_compiled(first):
    soak_ways.few_collections()
    for seed in range(first, min(first + PACK, FIRST + MORE)):
        check(seed, soak_ways.WAYS if SWEEP else [soak_ways.in_turn(seed)])


def test_all_rows_can_be_written():
    sources = [soak_calls.program(seed) for seed in range(300)]
    for source in sources:
        compile(source, "<soak>", "exec")
    written = "\n".join(sources)
    for text in ("match o:", "inner(a", "a.add_(1)", "twice()", "torch.inference_mode()", "STEP(", "again(a)"):
        assert text in written, text


CHANGES = ["a.data.add_(1)", "torch.rand(1)", "n = (n, 1)", "o.more = 1", "h = h + 1", "a.tag = 1", "raise Problem(3)"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_call_shows_is_compared(change):
    """The comparison is not blind to any of these."""
    source = soak_calls.program(0)
    target = source[source.index("def target(") :].partition("res, h = [], a * 2\n")
    source = source.replace(target[2], "    res.append(n)\n    return res, h\n")
    plain = soak_calls_checking.plainly(source)
    assert difference(plain, soak_calls_checking.plainly(source)) is None
    other = soak_calls_checking.plainly(source.replace("    res.append(n)", f"    {change}\n    res.append(n)"))
    assert difference(plain, other) is not None
