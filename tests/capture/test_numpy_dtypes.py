"""Tensors that are made of NumPy's numbers have the dtype that NumPy's have, and are compared with them as tensors."""

import numpy as np
import pytest
import torch
from agreeing import BACKENDS, agree

import bothways

X = torch.tensor([1.0, 2.0])


def alone(x, number):
    return torch.tensor(number), torch.as_tensor(number), torch.asarray(number), x.new_tensor(number)


def in_lists(x, number):
    return torch.tensor([number, number]), torch.as_tensor([[number], [number]]), torch.tensor((1, number))


def with_floats(x, number):
    return torch.tensor([number, 1.5]) + x, torch.cat([x, torch.tensor([number])])


def computed(x, number):
    return torch.tensor(np.sqrt(number + 1)), torch.tensor(number * 2), x * torch.tensor(np.mean([1, 2]))


def asked_for(x, number):
    return torch.tensor(number, dtype=torch.float16), torch.as_tensor(number, dtype=torch.int8)


def with_a_tensor(x, number):
    return torch.tensor([x[0].detach(), number])


PROGRAMS = [alone, in_lists, with_floats, computed, asked_for, with_a_tensor]


def seen(function, number):
    try:
        results = function(X, number)
    except TypeError as error:
        return {"refused": str(error)}
    results = results if isinstance(results, tuple) else (results,)
    return {"results": results, "dtypes": [result.dtype for result in results]}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.int32])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_dtype_is_numpys(program, kind, backend):
    agree(program, seen, kind(2), kind(2), kind(3), kind(5), 2, 2.5, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_dtype_is_numpys_whatever_the_default_is(backend):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        agree(alone, seen, np.float32(2), np.float32(2), np.float64(2), 2.0, backend=backend)
    finally:
        torch.set_default_dtype(before)


def compared(x, truth):
    return x == truth, truth == x, x != truth, x > truth


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_comparison_with_a_truth_of_numpys_is_a_tensor(backend):
    agree(compared, seen, np.bool_(True), np.bool_(True), np.bool_(False), backend=backend)


def of_a_dtype(x, dtype):
    kinds = dtype.name, dtype.kind, dtype.itemsize, str(dtype), dtype.type is np.float64, isinstance(dtype, np.dtype)
    return x * dtype.itemsize, kinds, np.issubdtype(dtype, np.floating), np.promote_types(dtype, np.int64)


def dtypes_compared(x, dtype):
    same = dtype == np.float64, np.float64 == dtype, dtype == "float64", "f4" != dtype, dtype in (np.int32, np.float64)
    return x + sum(same), same, np.dtype("float64") is dtype, {dtype: 1}.get(np.dtype("f8")), dtype > np.dtype("f4")


def seen_of_a_dtype(function, dtype):
    return {"results": function(X, np.dtype(dtype))}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [of_a_dtype, dtypes_compared], ids=lambda program: program.__name__)
def test_dtypes_are_constants(program, backend):
    agree(program, seen_of_a_dtype, "f8", "f8", "f4", backend=backend, fullgraph=True, programs=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_limits_of_dtypes_are_constants(backend):
    program = lambda x, dtype: (x + np.finfo(dtype).eps, np.iinfo(np.int64).max, np.finfo(dtype), np.iinfo("int8").min)
    observe = lambda function, dtype: {"results": [repr(one) for one in function(X, np.dtype(dtype))]}
    agree(program, observe, "f8", "f8", "f4", backend=backend, fullgraph=True, programs=2)


def test_a_limit_that_there_is_not_raises_as_in_plain_python():
    program = lambda x: x + np.iinfo(np.float32).max
    for function in (program, bothways.compile(program, backend="eager")):
        with pytest.raises(ValueError, match="Invalid integer data type"):
            function(X)
