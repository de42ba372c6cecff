"""Products of matrices and vectors, and convolutions."""

from __future__ import annotations

from bothways.ops.operation import Fails, Gives, row

ALL_FLOAT = Fails.UNLESS_ALL_FLOAT

ROWS = (
    row("addmm baddbmm bmm mm mv", fails=ALL_FLOAT, call_fails=False, is_product=True),
    row("addmv", call_fails=False, is_product=True),
    row("linear matmul", fails=ALL_FLOAT, is_product=True),
    row("dot", fails=ALL_FLOAT, call_fails=False),
    row("einsum outer", fails=ALL_FLOAT),
    row("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d", fails=ALL_FLOAT),
    row("convolution convolution_backward", call_fails=False),
    row(
        "addmm.default baddbmm.default bmm.default mm.default convolution.default convolution_backward.default",
        gives=Gives.FRESH,
    ),
    row("fbgemm_linear_fp16_weight.out fbgemm_linear_fp16_weight_fp32_activation.out", writes=True),
)
