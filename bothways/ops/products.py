"""Products of matrices and vectors, and convolutions."""

from __future__ import annotations

from bothways.ops.operation import Fails, Gives, row

FIT = Fails.UNLESS_FLOATS_FIT

ROWS = (
    row("addmm baddbmm", fails=FIT, call_fails=False, is_product=True, of_one_dtype=(0, 1, 2)),
    row("bmm mm mv", fails=FIT, call_fails=False, is_product=True, of_one_dtype=(0, 1)),
    row("addmv", call_fails=False, is_product=True),
    row("linear matmul", fails=FIT, is_product=True, of_one_dtype=(0, 1)),
    row("dot", fails=FIT, call_fails=False),
    row("einsum outer", fails=FIT),
    row(
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d", fails=FIT, gives=Gives.FRESH,
        of_one_dtype=(0, 1),
    ),
    row("convolution convolution_backward", call_fails=False),
    row(
        "addmm.default baddbmm.default bmm.default mm.default convolution.default convolution_backward.default",
        gives=Gives.FRESH,
    ),
    row("fbgemm_linear_fp16_weight.out fbgemm_linear_fp16_weight_fp32_activation.out", writes=True),
)
