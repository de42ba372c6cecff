"""PyTorch's own samples of what its operations refuse: refused alike, with the effects before it."""

import pytest
import torch
from agreeing import BACKENDS
from op_samples import op_db

import bothways
from bothways.torch_compat import tree_map_only

REFUSING = [operation for operation in op_db if operation.error_inputs_func is not None]
PARTS = 8


def copied(tensor):
    return tensor.detach().clone().requires_grad_(tensor.requires_grad) if tensor.layout is torch.strided else tensor


def observed(function, sample):
    log = []
    args, kwargs = tree_map_only(torch.Tensor, copied, ((sample.input, *sample.args), sample.kwargs))
    try:
        result = function(log, *args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0], log
    return tree_map_only(torch.Tensor, lambda tensor: (tensor.dtype, tensor.shape, tensor.requires_grad), result), log


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_operations_refuse(part, backend):
    problems, cases = [], 0
    for operation in REFUSING[part::PARTS]:
        for error in operation.error_inputs("cpu"):

            def program(log, *args, operation=operation, **kwargs):
                log.append("before")
                return operation.op(*args, **kwargs)

            expected = observed(program, error.sample_input)
            compiled = bothways.compile(program, backend=backend)
            cases += 1
            for _ in range(2):
                result = observed(compiled, error.sample_input)
                if result != expected:
                    problems.append(f"{operation.formatted_name}: {expected} plain, {result} compiled")
    assert cases > 20 and problems == []
