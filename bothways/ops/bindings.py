"""The fastest way into ATen that Python has, for each overload: methods and functions of PyTorch's own.

A row stands for an overload whose binding gives the very same operation the very same arguments: the tests call both on
the samples that PyTorch has. ``default`` is not said.
"""

from __future__ import annotations

from typing import Any

from bothways.ops.operation import Binding, FactRow, Home

METHODS = """
    abs acos acosh addbmm addcdiv addcmul addmm addmv addr all all.dim amax amin aminmax any any.dim argmax argmin
    as_strided asin asinh atan atan2 atanh baddbmm bitwise_and.Tensor bitwise_not bmm ceil
    cholesky cholesky_inverse cholesky_solve clamp clamp.Tensor clamp_max.Tensor clamp_min clamp_min.Tensor clone
    copysign.Tensor cos cosh count_nonzero count_nonzero.dim_IntList cummax cummin cumprod cumsum deg2rad detach
    diag_embed diagonal diagonal_scatter digamma dist div.Tensor_mode dot eq.Scalar eq.Tensor erf erfc erfinv exp
    exp2 expand expm1 flip floor floor_divide fmax fmin fmod.Tensor frac gather ge.Scalar ge.Tensor gt.Scalar
    gt.Tensor hardshrink heaviside hypot i0 igamma igammac index_add index_copy index_fill.int_Scalar
    index_fill.int_Tensor index_reduce index_select isinf isnan isneginf isposinf kthvalue ldexp.Tensor le.Scalar
    le.Tensor lerp.Scalar lerp.Tensor lgamma log log10 log1p log2 logaddexp logaddexp2 logcumsumexp logical_and
    logical_not logical_or logical_xor logit logsumexp lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor
    masked_scatter max max.dim maximum mean mean.dim median median.dim min min.dim minimum mm mode mv nan_to_num
    nanmedian nanmedian.dim nansum ne.Scalar ne.Tensor neg nextafter permute pow.Tensor_Scalar pow.Tensor_Tensor
    prod prod.dim_int put rad2deg reciprocal relu remainder.Scalar remainder.Tensor repeat roll rot90 round
    round.decimals rsqrt scatter.src scatter.value scatter_add scatter_reduce.two select.int select_scatter sigmoid
    sign signbit sin sinc sinh slice_scatter sort sort.stable split.Tensor split_with_sizes sqrt squeeze squeeze.dim
    squeeze.dims sum sum.dim_IntList t take tan tanh topk trace transpose.int tril triu trunc unbind.int unfold
    unsafe_split.Tensor unsqueeze vdot view xlogy.Tensor
"""
FUNCTIONS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _embedding_bag _fft_c2r _fft_r2c _linalg_det _linalg_eigh
    _linalg_slogdet _linalg_solve_ex _linalg_svd _prelu_kernel _safe_softmax _trilinear _unsafe_masked_index
    _unsafe_masked_index_put_accumulate bucketize.Tensor celu channel_shuffle fill.Scalar grid_sampler_2d
    grid_sampler_3d isin.Tensor_Tensor native_batch_norm native_dropout native_group_norm pixel_shuffle
    pixel_unshuffle pow.Scalar searchsorted.Tensor threshold _scaled_dot_product_flash_attention_for_cpu
"""
NN_FUNCTIONS = """
    _upsample_bilinear2d_aa _upsample_nearest_exact1d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d
    col2im elu fractional_max_pool2d fractional_max_pool3d glu im2col max_pool3d_with_indices max_unpool2d
    max_unpool3d mish reflection_pad1d replication_pad1d replication_pad2d softplus softshrink upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_trilinear3d
"""
# Those that are known not to ask whether gradients will be wanted; methods never do.
UNASKING_FUNCTIONS = """
    _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data cat constant_pad_nd convolution
    embedding empty_strided native_layer_norm rsub.Scalar rsub.Tensor stack where.self
"""
UNASKING_NN_FUNCTIONS = "gelu hardsigmoid hardswish hardtanh leaky_relu linear max_pool2d_with_indices silu"
# And such as have no binding that is known to do the same.
UNASKING = """
    _to_copy _unsafe_view as_strided_scatter bernoulli.p convolution_backward embedding_dense_backward gelu_backward
    index.Tensor index_put mse_loss mse_loss_backward native_layer_norm_backward nll_loss_backward nll_loss_forward
    slice.Tensor threshold_backward
"""
MAKING = ("dtype", "device")


def bound(names: str, home: Home, *, asks: bool = False, **facts: Any) -> FactRow:
    """Overloads with a binding; one that does not ask about gradients gives the same with and without."""
    return _row(names, binding=Binding(home, **facts), ignores_grad_mode=not asks)


def _row(names: str, **facts: Any) -> FactRow:
    return FactRow([name if "." in name else f"{name}.default" for name in names.split()], facts)


ROWS = (
    bound(METHODS, Home.METHODS),
    bound("add.Tensor div.Tensor mul.Tensor sub.Tensor", Home.METHODS, number_as_tensor=True),
    bound("std.correction var.correction", Home.METHODS, needs=("correction",)),
    bound(FUNCTIONS, Home.FUNCTIONS, asks=True),
    bound("std_mean.correction var_mean.correction", Home.FUNCTIONS, asks=True, needs=("correction",)),
    bound(UNASKING_FUNCTIONS, Home.FUNCTIONS),
    bound(NN_FUNCTIONS, Home.NN_FUNCTIONS, asks=True),
    bound(UNASKING_NN_FUNCTIONS, Home.NN_FUNCTIONS),
    _row(UNASKING, ignores_grad_mode=True),
    # The binding is another overload that does the same: a number becomes the tensor that PyTorch makes of it anyway,
    # and what is made is said to be in ordinary memory.
    bound("mul.Scalar new_zeros", Home.METHODS, is_alike=True),
    bound("add.Scalar div.Scalar sub.Scalar", Home.METHODS, is_alike=True, takes_two=True),
    bound("full_like ones_like zeros_like", Home.FUNCTIONS, is_alike=True),
    bound("full ones scalar_tensor zeros", Home.FUNCTIONS, is_alike=True, needs=MAKING),
)
