"""Generated programs do the same plainly and compiled: results, gradients, mutations, effects in order, exceptions.

``make soak SEED=… COUNT=…`` runs as many others as one likes, each in one of the ways, by its seed; ``SWEEP=1`` in all:
with every backend, and native both with kernels for everything and with small graphs left alone.
``FEATURES=hooks,special`` chooses what stands out.
"""

import os

import pytest
import soak_checking
import soak_features
import soak_ways
import soaking
import torch

MORE = int(os.environ.get("BOTHWAYS_SOAK_COUNT", "200"))
FIRST = int(os.environ.get("BOTHWAYS_SOAK_SEED", "1000"))
SWEEP = bool(int(os.environ.get("BOTHWAYS_SOAK_SWEEP") or 0))
PACK = 5  # programs a test

# What stands out in every other program of the long run, and in some of the short one.
CHOSEN = os.environ.get("BOTHWAYS_SOAK_FEATURES")
FEATURES = CHOSEN.split(",") if CHOSEN else list(soak_features.FEATURES)
OTHERS = {0: soak_ways.AOT, 3: soak_ways.QUICK, 4: soak_ways.LAZY, 5: soak_ways.NATIVE, 7: soak_ways.LAZY}


def features_of(seed):
    """Every other program is an everyday one; the others take turns with the features."""
    return (FEATURES[seed // 2 % len(FEATURES)],) if FEATURES and seed % 2 else ()


def check(seed, features=(), ways=None):
    source = soaking.program(seed, features)
    plain = soak_checking.plainly(source)
    for way in ways or [soak_ways.in_turn(seed)]:
        try:
            found = soak_checking.disagreement(source, way, plain)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        assert found is None, f"seed {seed}, features {features}, {way}\n{source}\n{found}"


@pytest.mark.parametrize("first", [0, pytest.param(PACK, marks=pytest.mark.slow)])
def test_generated_programs_are_the_same_compiled(first):
    """Most with the backend that runs what was captured; the others differentiate and build as well."""
    for seed in range(first, first + PACK):
        check(seed, (), [OTHERS.get(seed, soak_ways.EAGER)])


@pytest.mark.parametrize("feature", FEATURES)
def test_programs_in_which_a_feature_stands_out(feature):
    """Each feature in one of the ways."""
    way = FEATURES.index(feature) % len(soak_ways.WAYS)
    check(way, (feature,), [soak_ways.WAYS[way]])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + MORE, PACK))
def test_more_generated_programs_are_the_same_compiled(first):
    soak_ways.few_collections()
    for seed in range(first, min(first + PACK, FIRST + MORE)):
        check(seed, features_of(seed), soak_ways.WAYS if SWEEP else None)


@pytest.mark.parametrize("feature", soak_features.FEATURES)
def test_programs_with_a_feature_can_be_written_and_have_it(feature):
    rows = soak_features.FEATURES[feature]
    sources = [soaking.program(seed, (feature,)) for seed in range(20)]
    for source in sources:
        compile(source, "<soak>", "exec")
    everyday = [soaking.program(seed) for seed in range(20)]
    assert rows.expressions or rows.statements
    assert all(source != plain for source, plain in zip(sources, everyday, strict=True))
    assert all(rows.prelude in source for source in sources)


def test_functions_that_a_program_replaces_are_put_back():
    before = torch.sin, torch.Tensor.sin, torch.nn.Linear.forward, torch.nn.functional.relu
    module = soak_checking.load(soaking.program(0, ("patched",)), "<soak>")
    soak_checking.calls(module, module.target)
    assert torch.sin is not before[0]
    soak_checking.undo(module)
    assert before == (torch.sin, torch.Tensor.sin, torch.nn.Linear.forward, torch.nn.functional.relu)


def test_a_program_that_differs_is_made_smaller():
    source = "a = 1\nfor i in range(a):\n    if a:\n        b = 2\n        c = 3\n    else:\n        d = 4\n"
    assert soak_checking.smaller(source, lambda text: "b = 2" in text) == "b = 2"
