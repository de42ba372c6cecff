"""Sizes that change on a GPU: one program for all of them, whose kernels are kernels still."""

import pytest
import torch
import torch.nn.functional as F

import bothways
from bothways.record.outcomes import Way
from bothways.testing import difference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def layer_norm(x, w):
    return F.layer_norm(x, w.shape, w)


def norm_of_squares(x, w):
    return F.rms_norm(x, w.shape, w)


def softmax(x, w):
    return F.softmax(x * w, -1)


def cross_entropy(x, w):
    return F.cross_entropy(x * w, torch.arange(x.shape[0], device=x.device) % x.shape[1])


ROWS, BOTH = [(2560, 512), (3840, 512), (1000, 512)], [(2560, 512), (3840, 256), (1000, 1024)]
# PyTorch's own formula for the gradient of the last one takes columns that are plain numbers alone.
CASES = [*((one, BOTH) for one in (layer_norm, softmax, cross_entropy)), (norm_of_squares, ROWS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function, sizes", CASES)
def test_rows_of_a_gpu_are_kernels_for_all_sizes(function, sizes, dtype):
    """Also where the columns change, which a model's do not."""
    torch.manual_seed(0)
    compiled = bothways.compile(function, backend="native")
    for rows, columns in sizes:
        x = torch.randn(rows, columns, device="cuda", dtype=dtype).requires_grad_()
        w = torch.randn(columns, device="cuda", dtype=dtype).requires_grad_()
        found, expected = (
            (result, *torch.autograd.grad(result.sum(), (x, w))) for result in (compiled(x, w), function(x, w))
        )
        assert difference(found, expected, tol=3e-2 if dtype is torch.bfloat16 else 1e-3) is None
    ran = bothways.history(compiled)
    assert len(ran) <= 2
    assert all(piece.way is Way.KERNELS for one in ran for piece in one.outcome.pieces), [one.outcome for one in ran]
