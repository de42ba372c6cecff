"""What the native backend computes on a GPU is what eager computes there: PyTorch's own samples, both ways."""

import pytest
import torch
from op_samples import FREQUENT, OPERATIONS, findings_about, name_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

# dtype -> how many samples of each operation the slow test takes.
SWEEP = {torch.float32: 8, torch.bfloat16: 5, torch.float16: 4, torch.int64: 4}
PARTS = 8
# Eager itself gives something else at every call: sums by atomic additions, in the order in which threads come; where
# random numbers begin, which are not written down when none are drawn.
UNORDERED = (
    "grid_sampler", "nn_functional_interpolate", "nn_functional_upsample", "nn_functional_ctc_loss",
    "torch_ops_aten__efficient_attention_forward", "torch_ops_aten__flash_attention_forward",
)  # fmt: skip


def operations():
    return [operation for operation in OPERATIONS if not operation.formatted_name.startswith(UNORDERED)]


@pytest.mark.parametrize("dtype", SWEEP, ids=name_of)
def test_a_sample_of_what_programs_do_most(dtype):
    frequent = [operation for operation in operations() if operation.formatted_name in FREQUENT]
    findings_about(frequent, dtype, 1, device="cuda").none_failed()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", SWEEP, ids=name_of)
def test_many_samples(dtype, part):
    findings_about(operations()[part::PARTS], dtype, SWEEP[dtype], device="cuda").none_failed()
