"""``x.copy_(2.5)``: ATen makes a tensor of the number, and kernels write the number itself."""

import warnings

import pytest
import torch
from agreeing import agree

import bothways


@pytest.mark.filterwarnings("error::bothways.errors.KernelWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("number", [2, 2.5, -0.0, True, 300, float("nan"), 1j])
def test_a_number_that_is_copied_over_all_elements(number, dtype):
    def program(x):
        x.copy_(number)
        return x * 1, torch.zeros_like(x)[:1].copy_(number)

    def observe(function, start):
        x = torch.full((3, 4), start).to(dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Casting complex")
            return {"results": [*map(str, function(x))], "x": str(x)}

    compiled = agree(program, observe, 1, 3, backend="native", within={"kernels_for_small_graphs": True})
    reasons = [reason for each in bothways.history(compiled) if each.outcome for reason in each.outcome.reasons]
    assert not any("could not be lowered" in reason for reason in reasons)
