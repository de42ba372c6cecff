"""PyTorch's own operations and the samples it has of each."""

import itertools

import pytest

methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
_core = pytest.importorskip("torch.testing._internal.opinfo.core")
_utils = pytest.importorskip("torch.testing._internal.common_utils")

# PyTorch searches the stack for its own test, for each operation; pytest's stack is deep, and has none of its tests.
_core.extract_test_fn = _utils.extract_test_fn = lambda: None

op_db = methods.op_db


def first_samples(operation, dtype, count, *, requires_grad):
    """The first samples of an operation, made one by one."""
    return itertools.islice(operation.sample_inputs("cpu", dtype, requires_grad=requires_grad), count)
