"""An operation of ATen's that may give its argument itself, of which its schema says nothing: nobody writes there."""

import pytest
import torch
from agreeing import BACKENDS, agree


def changed(x):
    own = x.clone()
    own.conj_physical_()
    return own * 2, own


def of_what_is_detached(x):
    own = x.clone()
    before = own.detach()
    own.conj_physical_()
    return before * 2, own, before + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [changed, of_what_is_detached])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.complex64])
def test_what_conj_physical_gives_is_not_computed_over(program, dtype, backend):
    def observe(function, call):
        result = function(torch.arange(call * 3).reshape(call, 3).to(dtype))
        pairs = [one is other for one in result for other in result]
        return {"result": result, "one and the same": pairs}

    agree(program, observe, 2, 2, 4, backend=backend)
