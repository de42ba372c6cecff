"""Kernels give eager's zeros, infinities and NaNs, whatever numbers they meet: special_values.py says which those are."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from special_values import DTYPES, NOT_TRIED, calls_of, differences, name_of, numbers, tried

import bothways
from bothways.lower.lowerings import LOWERINGS

QUICK = [target for target in LOWERINGS if not name_of(target).startswith("_foreach")]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def name(dtype):
    return str(dtype).removeprefix("torch.")


def test_every_operation_that_kernels_compute_is_tried():
    left = {word for words in NOT_TRIED.values() for word in words.split()}
    reached = set()
    for dtype in (torch.float32, torch.int64):
        for _, calls in tried(dtype).values():
            reached.update(call.target for call, _ in calls)
    assert sorted(str(target) for target in LOWERINGS if target not in reached and name_of(target) not in left) == []
    assert left <= {name_of(target) for target in LOWERINGS}


def test_special_values_of_single_precision():
    found, count = differences(torch.float32, QUICK)
    assert found == []
    assert count > 700


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_special_values(dtype):
    assert differences(dtype)[0] == []
