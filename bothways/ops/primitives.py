"""The primitives that kernels compute at each index, and those that they reduce with; a dialect spells every one.

``lower/ir`` makes them of ATen's operations.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Primitive:
    """A primitive. Half precision is computed in single, and rounded where an operation ends."""

    name: str
    is_expensive: bool = False  # costs much more than reading a value again
    keeps_precision: bool = False  # gives a number of half precision whenever it gets such; others are rounded
    takes_numbers_in_float: bool = False  # as ATen's kernels do; others take those of the program as the tensors' dtype
    takes_numbers_in_float_on_gpu: bool = False  # the same there, besides those that do so everywhere
    compares: bool = False  # two numbers
    chooses: bool = False  # one of the numbers that it reduces


def _named(names: str, **facts: bool) -> dict[str, Primitive]:
    return {name: Primitive(name, **facts) for name in names.split()}


PRIMITIVES: dict[str, Primitive] = {
    **_named("copy constant where neg abs relu sign maximum minimum fmax fmin", keeps_precision=True),
    **_named("clamp_min clamp_max floor ceil trunc rint", keeps_precision=True),
    **_named("cast"),  # to another dtype, or to what memory holds of its own: dialects have a word of its own for it
    **_named("add sub multiply_add", takes_numbers_in_float_on_gpu=True),
    **_named("reciprocal sqrt rsqrt square deg2rad rad2deg trunc_divide copysign"),
    **_named("mul div", takes_numbers_in_float=True),
    **_named("share"),  # a part over the whole: a quotient whose parts are finite, and not below zero, or NaN
    **_named("floor_divide", takes_numbers_in_float=True, is_expensive=True),
    **_named("eq ne lt le gt ge", compares=True),
    **_named("logical_and logical_or logical_xor logical_not"),
    **_named("bitwise_and bitwise_or bitwise_xor bitwise_not isnan isinf isfinite isposinf isneginf signbit"),
    **_named("exp exp2 expm1 log log2 log10 log1p sigmoid erf erfc lgamma pow", is_expensive=True),
    **_named("sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sinc", is_expensive=True),
    **_named("fmod remainder hypot nextafter logaddexp logaddexp2 xlogy xlog1py entr", is_expensive=True),
    **_named("random", is_expensive=True),
    **_named("within"),  # an index, and the number it is below; a dialect that can ends with an error where it is not
}

REDUCTIONS: dict[str, Primitive] = {
    **_named("sum prod any all"),
    **_named("max min", keeps_precision=True, chooses=True),
}
