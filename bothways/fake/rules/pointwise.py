"""Pointwise operations: TensorIterator's broadcasting, layout and type promotion.

A row says which arguments are operands, which dtypes the operation takes and what the result's dtype is. Dtypes an
operation refuses are left out, so that PyTorch raises its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.fake.formulas import shares_extreme
from bothways.fake.layout import contiguous, dense_like, iterated, suggested_strides
from bothways.fake.promotion import (
    COMPLEX,
    COMPLEX_OF,
    FLOATING,
    INTEGERS,
    INTEGRAL,
    NUMERIC,
    REAL,
    common_dtype,
    promote,
    to_floating,
)
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor

Rule = Callable[..., Any]
DtypeRule = Callable[[torch.dtype], torch.dtype]


def same(dtype: torch.dtype) -> torch.dtype:
    return dtype


def boolean(dtype: torch.dtype) -> torch.dtype:
    return torch.bool


def iterate(operands: Sequence[Any], computes_in: torch.dtype) -> tuple[Shape, Shape]:
    """Sizes and strides of the result; numbers count as scalar tensors."""
    shapes, strides = [], []
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            shape, stride = tuple(operand.shape), operand.stride()
            if operand.dtype is not computes_in and operand.is_cpu:
                stride = dense_like(shape, stride)  # the CPU converts such operands first
            shapes.append(shape)
            strides.append(stride)
        else:
            shapes.append(())
            strides.append(())
    return iterated(tuple(shapes), tuple(strides))


def unary(takes: frozenset[torch.dtype], result: DtypeRule = same) -> Rule:
    def rule(operand: ThinTensor, *parameters: Any, **options: Any) -> Spec:
        dtype = operand.dtype
        if dtype not in takes:
            raise NotThin(f"{dtype} is not taken")
        return Spec(*iterated((tuple(operand.shape),), (operand.stride(),)), result(dtype))

    return rule


def _isin(elements: Any, test_elements: Any, **options: Any) -> Spec:
    """Asked of every element, however it lies; the answer lies side by side."""
    if not all(isinstance(operand, torch.Tensor) and operand.dtype in NUMERIC for operand in (elements, test_elements)):
        raise NotThin("elements that are numbers, or of a dtype that is not compared")
    shape = tuple(elements.shape)
    return Spec(shape, contiguous(shape), torch.bool)


def _conj_physical(operand: ThinTensor) -> Spec:
    if operand.dtype not in COMPLEX or 0 in operand.shape:
        raise NotThin("numbers without an imaginary part")
    return Spec(*iterated((tuple(operand.shape),), (operand.stride(),)), operand.dtype)


def _copied(takes: frozenset[torch.dtype]) -> Rule:
    """Like ``unary`` for what writes into an empty copy, which keeps even the strides of nothing."""

    def rule(operand: ThinTensor, *parameters: Any, **options: Any) -> Spec:
        if operand.dtype not in takes:
            raise NotThin(f"{operand.dtype} is not taken")
        shape = tuple(operand.shape)
        return Spec(shape, dense_like(shape, operand.stride()), operand.dtype)

    return rule


def nary(
    positions: Sequence[int],
    takes: frozenset[torch.dtype],
    result: DtypeRule = same,
    *,
    computes: DtypeRule = same,
    each: frozenset[torch.dtype] = REAL,
    one_dtype: bool = False,
) -> Rule:
    """Operands at ``positions``: their common dtype is in ``takes`` and that of every tensor in ``each``."""

    def rule(*args: Any, **options: Any) -> Spec:
        operands = [args[position] for position in positions]
        common = common_dtype(operands)
        if common not in takes:
            raise NotThin(f"{common} is not taken")
        for operand in operands:
            if isinstance(operand, torch.Tensor):
                if operand.dtype not in each or (one_dtype and operand.dtype is not common):
                    raise NotThin(f"{operand.dtype} is not taken")
            elif type(operand) is bool and torch.bool not in each:
                raise NotThin("a bool is not taken")
        common = computes(common)
        return Spec(*iterate(operands, common), result(common))

    return rule


def _with_alpha(rule: Rule) -> Rule:
    """``alpha`` has to suit the result: no fractions for integers, no numbers for truth values."""

    def with_alpha(*args: Any, alpha: Any = 1, **options: Any) -> Spec:
        positional = args[2] if len(args) > 2 else alpha  # add.Scalar takes it by position
        spec: Spec = rule(*args[:2])
        if (type(positional) is float and spec.dtype not in FLOATING) or type(positional) is bool:
            raise NotThin("alpha does not suit the operands")
        if spec.dtype is torch.bool and positional != 1:
            raise NotThin("alpha does not suit the operands")
        return spec

    return with_alpha


def _mul(one: Any, other: Any) -> Spec:
    spec: Spec = _ARITHMETIC_OF_ALL(one, other)
    return Spec(spec.shape, contiguous(spec.shape), spec.dtype) if shares_extreme(one, other) else spec


def _div(one: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    return (_QUOTIENT if rounding_mode is None else _ROUNDED_DIV)(one, other)


def _pow_number(base: ThinTensor, exponent: Any) -> Spec:
    dtype = common_dtype([base, exponent])
    if dtype not in NUMERIC or (dtype not in FLOATING and exponent < 0):
        raise NotThin(f"a power of {dtype}")
    shape, stride = iterate([base], dtype)
    return Spec(shape, stride, dtype)


def _pow(base: ThinTensor, exponent: Any) -> Any:
    return (_ROUNDED_DIV if isinstance(exponent, torch.Tensor) else _pow_number)(base, exponent)


def _pow_of_number(base: Any, exponent: ThinTensor) -> Spec:
    dtype = common_dtype([base, exponent])
    if dtype not in NUMERIC:
        raise NotThin(f"a power of {dtype}")
    shape = tuple(exponent.shape)
    return Spec(shape, contiguous(shape), dtype)


def _clamp(operand: ThinTensor, low: Any = None, high: Any = None) -> Spec:
    """Numbers as bounds are parameters, tensors are operands."""
    bounds = [bound for bound in (low, high) if bound is not None]
    dtype = common_dtype([operand, *bounds])
    if not bounds or dtype not in NUMERIC:
        raise NotThin(f"clamp of {dtype}")
    tensors = [bound for bound in bounds if isinstance(bound, torch.Tensor)]
    if tensors and len(tensors) != len(bounds):
        raise NotThin("bounds of both kinds")
    return Spec(*iterate([operand, *tensors], dtype), dtype)


def _extreme(one: ThinTensor, other: Any) -> Any:
    """On lists of tensors a number is a bound, not an operand."""
    return _ARITHMETIC(one, other) if isinstance(other, torch.Tensor) else _clamp(one, other)


def _lerp(one: ThinTensor, other: ThinTensor, weight: Any) -> Any:
    return (_OF_THREE if isinstance(weight, torch.Tensor) else _OF_WEIGHTED)(one, other, weight)


def _where(condition: ThinTensor, one: Any, other: Any) -> Spec:
    if condition.dtype is not torch.bool:
        raise NotThin("a condition that is not boolean")
    dtype = common_dtype([one, other])
    shapes, strides = [tuple(condition.shape)], [condition.stride()]
    for operand in (one, other):
        shape, stride = tuple(operand.shape), operand.stride()
        shapes.append(shape)
        strides.append(stride if operand.dtype is dtype else dense_like(shape, stride))
    return Spec(*iterated(tuple(shapes), tuple(strides)), dtype)


def _masked_fill(operand: ThinTensor, mask: ThinTensor, value: Any) -> Spec:
    if mask.dtype is not torch.bool:
        raise NotThin("a mask that is not boolean")
    if isinstance(value, torch.Tensor) and (value.dim() or value.dtype is not operand.dtype):
        raise NotThin("a value to fill with that is not a scalar of the same dtype")
    if common_dtype([operand, value]) is not operand.dtype:
        raise NotThin("a value that does not fit")
    shape, _ = iterate([operand, mask], operand.dtype)
    return Spec(shape, contiguous(shape), operand.dtype)


def _log_sigmoid(operand: ThinTensor) -> tuple[Spec, Spec]:
    if operand.dtype not in FLOATING or not operand.is_cpu:
        raise NotThin("log_sigmoid")
    spec = Spec(tuple(operand.shape), contiguous(tuple(operand.shape)), operand.dtype)
    return spec, spec


def _glu(operand: ThinTensor, dim: int = -1) -> Spec:
    shape = list(operand.shape)
    if operand.dtype not in FLOATING or not shape or not -len(shape) <= dim < len(shape) or shape[dim] % 2:
        raise NotThin("glu")
    shape[dim] //= 2
    half = tuple(shape)
    return Spec(*iterated((half, half), (operand.stride(), operand.stride())), operand.dtype)


def _prelu(operand: ThinTensor, weight: ThinTensor) -> Spec:
    shape, stride = tuple(operand.shape), operand.stride()
    if weight.dtype is not operand.dtype or operand.dtype not in FLOATING:
        raise NotThin("weights of another dtype")
    if iterate([operand, weight], operand.dtype)[0] != shape:
        raise NotThin("weights that do not fit")
    return Spec(shape, dense_like(shape, stride), operand.dtype)


def _prelu_backward(grad: ThinTensor, operand: ThinTensor, weight: ThinTensor) -> tuple[Spec, Spec]:
    spec: Spec = nary((0, 1, 2), FLOATING, one_dtype=True)(operand, weight, grad)
    return spec, spec


def _slope_backward(grad: ThinTensor, operand: ThinTensor, noise: ThinTensor, *parameters: Any) -> Spec:
    """By the slopes that were drawn, or by one for all."""
    lower, upper, training, _ = parameters
    by_noise = training and upper - lower > 1e-6
    spec: Spec = _FLOATS(noise if by_noise else operand, grad)
    return spec


def _log_sigmoid_backward(grad: ThinTensor, operand: ThinTensor, buffer: ThinTensor) -> Spec:
    if not grad.is_cpu:
        raise NotThin("log_sigmoid")
    if not grad.shape == operand.shape == buffer.shape or not grad.dtype is operand.dtype is buffer.dtype:
        raise NotThin("a gradient that does not fit")
    shape = tuple(grad.shape)
    return Spec(shape, dense_like(shape, grad.stride()), grad.dtype)


def _glu_backward(grad: ThinTensor, operand: ThinTensor, dim: int) -> Spec:
    if _glu(operand, dim).shape != tuple(grad.shape) or grad.dtype is not operand.dtype:
        raise NotThin("a gradient that does not fit")
    shape = tuple(operand.shape)
    return Spec(shape, contiguous(shape), operand.dtype)


def _dropout_backward(grad: ThinTensor, mask: ThinTensor, scale: float) -> Spec:
    if mask.dtype is not torch.bool or grad.dtype not in FLOATING:
        raise NotThin("a mask that is not boolean")
    if not grad.is_cpu:  # a kernel of its own
        return Spec(tuple(grad.shape), suggested_strides(grad, tuple(grad.shape)), grad.dtype)
    return Spec(*iterate([grad, mask], grad.dtype), grad.dtype)


_TRUE_DIV = nary((0, 1), REAL, computes=to_floating)
_QUOTIENT = nary((0, 1), REAL | COMPLEX, computes=to_floating, each=REAL | COMPLEX)
_ROUNDED_DIV = nary((0, 1), NUMERIC)
_COMPARISON = nary((0, 1), REAL, boolean)
_ARITHMETIC = nary((0, 1), REAL)
_ARITHMETIC_OF_ALL = nary((0, 1), REAL | COMPLEX, each=REAL | COMPLEX)
_FLOATS = nary((0, 1), FLOATING)
_OF_THREE = nary((0, 1, 2), FLOATING, one_dtype=True)
_OF_WEIGHTED = nary((0, 1), FLOATING, one_dtype=True)  # by a number

PRECISE = REAL - {torch.bfloat16, torch.float16}

ROWS: tuple[tuple[str, Rule], ...] = (
    (
        "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log1p log2 log10 sqrt rsqrt "
        "sigmoid erf erfc erfinv reciprocal digamma lgamma logit sinc special_entr special_i0e special_i1 special_i1e "
        "i0 deg2rad rad2deg",
        unary(REAL, to_floating),
    ),
    (
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_erfcx "
        "special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
        "special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
        "special_spherical_bessel_j0",
        unary(PRECISE, to_floating),
    ),
    (
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
        "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he "
        "special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t "
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
        "special_shifted_chebyshev_polynomial_w special_zeta",
        nary((0, 1), PRECISE, computes=to_floating, each=PRECISE),
    ),
    ("_conj_physical", _conj_physical),
    ("isin", _isin),
    ("igamma igammac", nary((0, 1), FLOATING & PRECISE, each=FLOATING & PRECISE)),
    ("complex polar", nary((0, 1), FLOATING & PRECISE, COMPLEX_OF.__getitem__, one_dtype=True)),
    ("neg", unary(NUMERIC | COMPLEX)),
    ("abs floor ceil round trunc relu", unary(NUMERIC)),
    ("sign sgn", unary(REAL)),
    ("nan_to_num", _copied(REAL)),
    ("round.decimals", unary(FLOATING)),
    ("frac silu gelu elu leaky_relu hardsigmoid hardswish softplus mish hardshrink softshrink celu", unary(FLOATING)),
    ("hardtanh", _copied(NUMERIC - {torch.uint8})),
    ("threshold", unary(NUMERIC)),
    ("bitwise_not", unary(INTEGRAL)),
    ("logical_not isnan isinf isfinite signbit isposinf isneginf", unary(REAL, boolean)),
    ("add", _with_alpha(_ARITHMETIC_OF_ALL)),
    ("sub", _with_alpha(nary((0, 1), NUMERIC | COMPLEX, each=NUMERIC | COMPLEX))),
    ("rsub", _with_alpha(nary((1, 0), NUMERIC | COMPLEX, each=NUMERIC | COMPLEX))),
    ("mul", _mul),
    ("maximum minimum fmax fmin", _ARITHMETIC),
    ("heaviside", nary((0, 1), REAL, one_dtype=True)),
    ("div", _div),
    ("atan2 copysign xlogy special_xlog1py", _TRUE_DIV),
    ("pow.Tensor_Tensor remainder fmod floor_divide", _ROUNDED_DIV),
    ("pow.Tensor_Scalar", _pow_number),
    ("pow.Scalar", _pow_of_number),
    ("pow.foreach", _pow),
    ("maximum.foreach minimum.foreach", _extreme),
    ("bitwise_and bitwise_or bitwise_xor", nary((0, 1), INTEGRAL)),
    ("bitwise_left_shift bitwise_right_shift gcd lcm", nary((0, 1), INTEGERS)),
    ("logical_and logical_or logical_xor eq ne lt le gt ge", _COMPARISON),
    ("hypot logaddexp logaddexp2 nextafter", _FLOATS),
    ("clamp clamp_min clamp_max.default clamp_max.Tensor clamp_max.foreach", _clamp),
    ("where.self", _where),
    ("masked_fill", _masked_fill),
    ("addcmul", nary((0, 1, 2), NUMERIC)),
    ("addcdiv lerp.Tensor", _OF_THREE),
    ("lerp.Scalar", _OF_WEIGHTED),
    ("lerp.foreach", _lerp),
    ("tanh_backward sigmoid_backward silu_backward gelu_backward softplus_backward", _FLOATS),
    ("hardswish_backward hardsigmoid_backward hardtanh_backward softshrink_backward hardshrink_backward", _FLOATS),
    ("threshold_backward leaky_relu_backward", nary((1, 0), FLOATING)),
    ("mish_backward", _FLOATS),
    ("rrelu_with_noise_backward", _slope_backward),
    ("elu_backward", nary((0, 5), FLOATING)),
    ("logit_backward", _FLOATS),
    ("native_dropout_backward", _dropout_backward),
    ("_prelu_kernel", _prelu),
    ("_prelu_kernel_backward", _prelu_backward),
    ("log_sigmoid_backward", _log_sigmoid_backward),
    ("glu_backward", _glu_backward),
    ("promote_types", promote),
    ("log_sigmoid_forward", _log_sigmoid),
    ("glu", _glu),
)

RULES = {name: rule for names, rule in ROWS for name in names.split()}
