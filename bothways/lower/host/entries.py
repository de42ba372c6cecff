"""The fastest way into ATen that Python has, for each operation: a table of methods and functions of PyTorch's own.

An overload called from Python goes through the schema, argument by argument (1 to 8 us); the methods and functions that
PyTorch generates in C++ parse the same arguments into the same call of the dispatcher in half of that. A row stands for
an overload whose binding gives the very same operation the very same arguments: the tests call both on the samples that
PyTorch has. What has no row is called by its overload, without the Python around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bothways import torch_compat

# Overloads, where ``default`` is not said. The first that has one is the binding: a method, a function, a function of
# ``torch.nn``; each has the operation's name.
METHODS = """
    abs acos acosh add.Tensor addbmm addcdiv addcmul addmm addmv addr all all.dim amax amin aminmax any any.dim
    argmax argmin as_strided as_strided_scatter asin asinh atan atan2 atanh baddbmm bitwise_and.Tensor bitwise_not
    bmm ceil cholesky cholesky_inverse cholesky_solve clamp clamp.Tensor clamp_max.Tensor clamp_min clamp_min.Tensor
    clone copysign.Tensor cos cosh count_nonzero count_nonzero.dim_IntList cummax cummin cumprod cumsum deg2rad
    detach diag_embed diagonal diagonal_scatter digamma dist div.Tensor div.Tensor_mode dot eq.Scalar eq.Tensor erf
    erfc erfinv exp exp2 expand expm1 flip floor floor_divide fmax fmin fmod.Tensor frac gather ge.Scalar ge.Tensor
    gt.Scalar gt.Tensor hardshrink heaviside hypot i0 igamma igammac index_add index_copy index_fill.int_Scalar
    index_fill.int_Tensor index_reduce index_select isinf isnan isneginf isposinf kthvalue ldexp.Tensor le.Scalar
    le.Tensor lerp.Scalar lerp.Tensor lgamma log log10 log1p log2 logaddexp logaddexp2 logcumsumexp logical_and
    logical_not logical_or logical_xor logit logsumexp lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor
    masked_scatter max max.dim maximum mean mean.dim median median.dim min min.dim minimum mm mode mul.Tensor mv
    nan_to_num nanmedian nanmedian.dim nansum ne.Scalar ne.Tensor neg nextafter permute pow.Tensor_Scalar
    pow.Tensor_Tensor prod prod.dim_int put rad2deg reciprocal relu remainder.Scalar remainder.Tensor repeat roll
    rot90 round round.decimals rsqrt scatter.src scatter.value scatter_add scatter_reduce.two select.int
    select_scatter sigmoid sign signbit sin sinc sinh slice_scatter sort sort.stable split.Tensor split_with_sizes
    sqrt squeeze squeeze.dim squeeze.dims std.correction sub.Tensor sum sum.dim_IntList t take tan tanh topk trace
    transpose.int tril triu trunc unbind.int unfold unsafe_split.Tensor unsqueeze var.correction vdot view
    xlogy.Tensor
"""
FUNCTIONS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _embedding_bag _fft_c2r _fft_r2c _linalg_det _linalg_eigh
    _linalg_slogdet _linalg_solve_ex _linalg_svd _log_softmax _log_softmax_backward_data _prelu_kernel _safe_softmax
    _softmax _softmax_backward_data _trilinear _unsafe_masked_index _unsafe_masked_index_put_accumulate
    bucketize.Tensor cat celu channel_shuffle constant_pad_nd convolution embedding empty_strided fill.Scalar
    grid_sampler_2d grid_sampler_3d isin.Tensor_Tensor native_batch_norm native_dropout native_group_norm
    native_layer_norm pixel_shuffle pixel_unshuffle pow.Scalar rsub.Scalar rsub.Tensor searchsorted.Tensor
    stack std_mean.correction threshold var_mean.correction where.self
    _scaled_dot_product_flash_attention_for_cpu
"""
NN_FUNCTIONS = """
    _upsample_bilinear2d_aa _upsample_nearest_exact1d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d
    col2im elu fractional_max_pool2d fractional_max_pool3d gelu glu hardsigmoid hardswish hardtanh im2col
    leaky_relu linear max_pool2d_with_indices max_pool3d_with_indices max_unpool2d max_unpool3d mish reflection_pad1d
    replication_pad1d replication_pad2d silu softplus softshrink upsample_bicubic2d upsample_bilinear2d
    upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_trilinear3d
"""
# The binding is another overload that does the same: a number becomes the tensor that PyTorch makes of it anyway, and
# what is made is said to be in ordinary memory.
ALIKE_METHODS = "add.Scalar div.Scalar mul.Scalar sub.Scalar new_zeros"
ALIKE_FUNCTIONS = "full full_like ones ones_like scalar_tensor zeros zeros_like"

# Where a number may stand for a tensor.
TAKES_NUMBERS = frozenset({"aten.add.Tensor", "aten.div.Tensor", "aten.mul.Tensor", "aten.sub.Tensor"})
# Bindings know other arguments by place: these have to be two.
TAKES_TWO = frozenset({"aten.add.Scalar", "aten.div.Scalar", "aten.sub.Scalar"})
# Without these, bindings and overloads choose for themselves.
NEEDS_KEYWORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("aten.full", "aten.ones", "aten.scalar_tensor", "aten.zeros"), ("dtype", "device")),
    **dict.fromkeys((f"aten.{name}.correction" for name in ("std", "std_mean", "var", "var_mean")), ("correction",)),
}


def _full_name(row: str) -> str:
    return f"aten.{row}" if "." in row else f"aten.{row}.default"


def _rows() -> dict[str, tuple[Any, str]]:
    homes = (
        (torch_compat.TENSOR_METHODS, METHODS + ALIKE_METHODS),
        (torch_compat.VARIABLE_FUNCTIONS, FUNCTIONS + ALIKE_FUNCTIONS),
        (torch_compat.NN_FUNCTIONS, NN_FUNCTIONS),
    )
    return {
        _full_name(row): (home, row.partition(".")[0])
        for home, rows in homes
        for row in rows.split()
    }


ROWS: dict[str, tuple[Any, str]] = _rows()


# Operations of the last tables that are known not to ask whether gradients will be wanted, with those that have no row.
# Methods never do.
GRAD_MODE_DOES_NOT_MATTER = """
    _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data _to_copy _unsafe_view bernoulli.p cat
    constant_pad_nd convolution convolution_backward embedding embedding_dense_backward empty_strided full full_like
    gelu gelu_backward hardsigmoid hardswish hardtanh index.Tensor index_put leaky_relu linear max_pool2d_with_indices
    mse_loss mse_loss_backward native_layer_norm native_layer_norm_backward nll_loss_backward nll_loss_forward ones
    ones_like rsub.Scalar rsub.Tensor scalar_tensor scatter_add silu slice.Tensor stack threshold_backward where.self
    zeros zeros_like
"""


def asks_for_grad_mode(target: Any) -> bool:
    """Whether an operation may give something else where gradients will be wanted."""
    return str(target) not in _unasking()


@functools.cache
def _unasking() -> frozenset[str]:
    return frozenset(map(_full_name, (METHODS + ALIKE_METHODS + GRAD_MODE_DOES_NOT_MATTER).split()))


def entry(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_tensor: Callable[[Any], bool]
) -> Callable[..., Any]:
    """What to call in the place of ``target`` with these arguments; ``is_tensor`` tells which of them are tensors."""
    if not torch_compat.is_plain_overload(target):
        function: Callable[..., Any] = target
        return function
    row = _found(target)
    if row is None or not all(is_tensor(args[place]) for place in row.tensors if place < len(args)):
        return direct(target)
    name = str(target)
    if name in TAKES_TWO and (len(args) != 2 or kwargs):
        return direct(target)
    needed = NEEDS_KEYWORDS.get(name.removesuffix(".default"), ())
    if not row.keywords.issuperset(kwargs) or any(kwargs.get(keyword) is None for keyword in needed):
        return direct(target)
    return row.binding


@dataclass(frozen=True)
class _Row:
    """A binding, which of its arguments have to be tensors, and which are known by the same name."""

    binding: Callable[..., Any]
    tensors: tuple[int, ...]
    keywords: frozenset[str]


@functools.cache
def _found(target: Any) -> _Row | None:
    name = str(target)
    home, attribute = ROWS.get(name, (None, ""))
    binding = getattr(home, attribute, None)
    if binding is None:
        return None
    tensors = (0,) if name in TAKES_NUMBERS else torch_compat.tensor_places(target)
    return _Row(binding, tensors, torch_compat.keyword_names(target))


def direct(target: Any) -> Callable[..., Any]:
    """The function in C++ that an overload calls."""
    function: Callable[..., Any] = torch_compat.function_of_overload(target)
    return function
