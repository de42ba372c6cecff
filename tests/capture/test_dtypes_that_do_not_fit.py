"""What eager refuses for its dtypes alone, while shapes would allow it, every backend refuses, and where it stands."""

import pytest
import torch
from agreeing import agree

pytestmark = pytest.mark.usefixtures("kernels_for_all")

BACKENDS = ["eager", "aot_eager", "native"]
WHOLE, TRUTH, REAL, COMPLEX = torch.int64, torch.bool, torch.float32, torch.complex64

IN_PLACE = {
    "a fraction times whole numbers": (lambda x: x.mul_(0.5), (WHOLE, REAL, torch.uint8)),
    "an operator": (lambda x: x.__imul__(0.5), (WHOLE, REAL)),
    "complex times real numbers": (lambda x: x.mul_(1j), (REAL, COMPLEX, WHOLE)),
    "complex added to real numbers": (lambda x: x.add_(torch.ones(3) * 1j), (REAL, COMPLEX)),
    "fractions in products": (lambda x: x.addcmul_(torch.ones(3), torch.ones(3)), (WHOLE, REAL)),
    "lists": (lambda x: torch._foreach_mul_([x], 1j), (REAL, COMPLEX)),
    "sums in another dtype": (lambda x: x.cumsum_(0, dtype=torch.float64), (REAL, torch.float64)),
    "chances of whole numbers": (lambda x: x.logit_(0.1), (WHOLE, TRUTH, REAL)),
    "whole numbers times powers": (lambda x: x.ldexp_(torch.ones(3)), (WHOLE, REAL)),
    "sums of truths": (lambda x: x.cumsum_(0), (TRUTH, WHOLE, torch.uint8)),
    "truths times whole numbers": (lambda x: x.multiply_(2), (TRUTH, WHOLE)),
    "fractions that are copied": (lambda x: x.copy_(torch.ones(3) / 2), (WHOLE, REAL)),  # which is no error
}
GIVEN = {
    "fractions between whole numbers": (lambda x: torch.lerp(x, x, 0.5), (WHOLE, REAL, TRUTH)),
    "an index of fractions": (lambda x: torch.arange(9.0).index_select(0, x), (REAL, WHOLE, torch.int32)),
    "a range of truths": (lambda x: torch.arange(0, 2, dtype=x.dtype), (TRUTH, WHOLE)),
    "complex numbers in order": (lambda x: x > 0, (COMPLEX, REAL)),
    "deviations of whole numbers": (lambda x: x.std(), (WHOLE, REAL)),
    "truths that are rounded": (lambda x: x.floor(), (TRUTH, REAL)),
    "the largest of complex numbers": (lambda x: x.amax(), (COMPLEX, REAL)),
}


def observe(function, dtype):
    x = torch.tensor([1, 2, 3]).to(dtype)
    log = []
    try:
        result = function(x, log)
    except (RuntimeError, NotImplementedError) as error:
        return {"raised": (type(error).__name__, str(error)), "x": x, "log": log}
    return {"result": result, "x": x, "log": log}


@pytest.mark.parametrize("name", [*IN_PLACE, *GIVEN])
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_leaves_the_function_after_what_was_done_before(name, backend):
    operation, dtypes = {**IN_PLACE, **GIVEN}[name]

    def program(x, log):
        log.append("begun")
        result = operation(x)
        log.append("done")
        return result

    agree(program, observe, *dtypes, *dtypes, backend=backend)


@pytest.mark.parametrize("name", [*IN_PLACE, *GIVEN])
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_raises_where_the_handler_is(name, backend):
    operation, dtypes = {**IN_PLACE, **GIVEN}[name]

    def program(x, log):
        try:
            result = operation(x)
        except (RuntimeError, NotImplementedError) as error:
            log.append(str(error))
            return x + x
        return result

    agree(program, observe, *dtypes, *dtypes, backend=backend)


def test_how_many_bytes_there_are_of_several_sizes():
    def sized(function, size):
        return {"result": function(torch.ones(size, 2))}

    agree(lambda x: (x.nbytes, (x * 2).half().nbytes, x + 1), sized, 3, 4, 5, 5, programs=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_looked_for_in_a_transposed_tensor_lies_in_order(backend):
    def strided(function, size):
        result = function(torch.ones(size, 5).t())
        return {"result": result, "strides": result.stride()}

    agree(lambda x: torch.isin(x * 1, torch.tensor([1.0, 2.0])), strided, 3, 3, 4, 6, backend=backend)
