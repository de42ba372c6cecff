"""What ATen refuses for the number of its dimensions is refused compiled, too."""

import pytest
import torch
from agreeing import BACKENDS, agree

FEW, MANY = torch.ones([1] * 64), torch.ones([1] * 65)
REDUCTIONS = {
    "amax": lambda x: x.amax(0),
    "amin of two": lambda x: x.amin((0, 1)),
    "aminmax": lambda x: torch.aminmax(x, dim=0),
    "max": lambda x: x.max(0),
    "sum": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(3),
    "exp": lambda x: x.exp(),
}


@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=REDUCTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_dimensions_than_aten_takes(reduction, backend):
    def observe(function, x):
        try:
            result = function(x)
        except RuntimeError as error:
            return {"raised": str(error)}
        return {"result": [tensor.sum() for tensor in result] if isinstance(result, tuple) else result.sum(())}

    agree(lambda x: reduction(x * 2), observe, FEW, MANY, FEW, MANY, backend=backend)
