"""Operations on lists of tensors, which optimizers use, and their updates in one call."""

from __future__ import annotations

from bothways.ops.operation import FactRow, Fails, row

# What is done for each tensor, where it is the operation of the same name.
OF_ONE = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)


def _foreach(names: str, overload: str) -> tuple[FactRow, ...]:
    return tuple(row(f"_foreach_{name}", each=f"{name}.{overload}") for name in names.split())


ROWS = (
    *_foreach(OF_ONE, "default"),
    *_foreach("add sub mul div", "Tensor"),
    *_foreach("clamp_min clamp_max copy", "default"),
    *_foreach("pow", "Tensor_Scalar"),
    *_foreach("lerp", "Scalar"),
    row("_foreach_addcmul", each="addcmul.default", factor="value"),
    row("_foreach_addcdiv", each="addcdiv.default", factor="value"),
    row("_foreach_maximum", each="clamp_min.default"),
    row("_foreach_minimum", each="clamp_max.default"),
    row("_foreach_lerp.List", each="lerp.Tensor"),
    row("_foreach_lerp_", uncounted_at_once=2),  # with three, the weights are tensors
    row("_foreach_zero_", uncounted_at_once=1),
    row("_fused_adagrad _fused_adam _fused_adamw _fused_sgd", fails=Fails.UNLESS_LISTS_FIT),
)
