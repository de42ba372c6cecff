"""What the native backend computes is what eager computes: PyTorch's own samples of its operations, both ways.

The fast tests take one sample of each operation; the slow ones take many, in more dtypes, and write down what
``make conformance`` reports in docs/conformance.md.
"""

import pytest
import torch
from op_samples import FREQUENT, MADE_OF_OTHERS, OPERATIONS, SWEEP, findings_about, name_of

PARTS = 6  # a test runs one part of the operations


@pytest.mark.parametrize("part", range(6))
def test_a_sample_of_each_operation(part):
    common = [operation for operation in OPERATIONS if not operation.name.startswith(MADE_OF_OTHERS)]
    assert findings_about(common[part::6], torch.float32, 1).failed == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool], ids=name_of)
def test_samples_in_other_dtypes(dtype):
    frequent = [operation for operation in OPERATIONS if operation.formatted_name in FREQUENT]
    assert findings_about(frequent, dtype, 1).failed == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", SWEEP, ids=name_of)
def test_many_samples(dtype, part):
    findings = findings_about(OPERATIONS[part::PARTS], dtype, SWEEP[dtype])
    findings.write(f"{name_of(dtype)}-{part}")
    assert findings.failed == {}


def test_samples_of_special_values():
    frequent = [operation for operation in OPERATIONS if operation.formatted_name in FREQUENT]
    assert findings_about(frequent[::2], torch.float32, 1, special=True).failed == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16], ids=name_of)
def test_many_samples_of_special_values(dtype, part):
    assert findings_about(OPERATIONS[part::PARTS], dtype, 2, special=True).failed == {}
