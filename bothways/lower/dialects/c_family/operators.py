"""How each primitive operation is written in C: tables from names to text. Helpers are in prelude.py."""

from __future__ import annotations

import math
from typing import Any

import torch

from bothways.building.declarations import LIBRARY, OF_TWO
from bothways.lower.ir.sizes import Fraction, Size

# dtype -> the C type a value is computed in, and the one it has in memory. Half precision is computed in float.
COMPUTED: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "float",
    torch.float16: "float",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}
IN_MEMORY: dict[torch.dtype, str] = {**COMPUTED, torch.bfloat16: "uint16_t", torch.float16: "uint16_t"}
# A truth in memory may be any byte: those that were bytes before a view are.
LOADS: dict[torch.dtype, str] = {
    torch.bfloat16: "from_bfloat16({0})", torch.float16: "from_float16({0})", torch.bool: "({0} != 0)",
}  # fmt: skip
STORES: dict[torch.dtype, str] = {torch.bfloat16: "to_bfloat16({0})", torch.float16: "to_float16({0})"}
STORES_OF_ROUNDED: dict[torch.dtype, str] = {
    torch.bfloat16: "bits_of_bfloat16({0})", torch.float16: "bits_of_float16({0})",
}  # fmt: skip

# Operation -> C, over the arguments; T is the computed type, F the suffix of its library functions.
TEMPLATES: dict[str, str] = {
    "copy": "{0}",
    "constant": "{0}",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "share": "({0} / {1})",
    "multiply_add": "multiply_add_{T}({0}, {1}, {2})",
    "neg": "(-{0})",
    "reciprocal": "(1 / {0})",
    "rsqrt": "(1 / sqrt{F}({0}))",
    "sigmoid": "(1 / (1 + exp{F}(-{0})))",
    "square": "({0} * {0})",
    "abs": "({0} < 0 ? -{0} : {0})",
    "sign": "(T)(({0} > 0) - ({0} < 0))",
    "relu": "({0} < 0 ? 0 : {0})",
    # As ATen has it: the number itself where it equals the bound, or is NaN.
    "clamp_min": "({0} < {1} ? {1} : {0})",
    "clamp_max": "({0} > {1} ? {1} : {0})",
    "maximum": "(({0} > {1} || {0} != {0}) ? {0} : {1})",
    "minimum": "(({0} < {1} || {0} != {0}) ? {0} : {1})",
    "fmax": "(({0} >= {1} || {1} != {1}) ? {0} : {1})",
    "fmin": "(({0} <= {1} || {1} != {1}) ? {0} : {1})",
    "where": "({0} ? {1} : {2})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "logical_and": "({0} && {1})",
    "logical_or": "({0} || {1})",
    "logical_xor": "(!{0} != !{1})",
    "logical_not": "(!{0})",
    "bitwise_and": "({0} & {1})",
    "bitwise_or": "({0} | {1})",
    "bitwise_xor": "({0} ^ {1})",
    "bitwise_not": "(T)(~{0})",
    "isnan": "({0} != {0})",
    "isinf": "(fabs{F}({0}) == (T)INFINITY)",
    "isfinite": "(fabs{F}({0}) < (T)INFINITY)",
    "isposinf": "({0} == (T)INFINITY)",
    "isneginf": "({0} == -(T)INFINITY)",
    "signbit": "(copysign{F}(1, {0}) < 0)",
    "remainder": "remainder_{T}({0}, {1})",
    "floor_divide": "floor_divide_{T}({0}, {1})",
    "trunc_divide": "trunc{F}({0} / {1})",
    "deg2rad": "({0} * (T)0.017453292519943295769236907684886)",
    "rad2deg": "({0} * (T)57.295779513082320876798154814105)",
    "sinc": "sinc_{T}({0})",
    "entr": "({0} != {0} ? {0} : {0} > 0 ? -{0} * log{F}({0}) : {0} == 0 ? 0 : -(T)INFINITY)",
    "xlogy": "({1} != {1} ? {1} : {0} == 0 ? 0 : {0} * log{F}({1}))",
    "xlog1py": "({1} != {1} ? {1} : {0} == 0 ? 0 : {0} * log1p{F}({1}))",
    "random": "random_float({0}, {1})",
    "within": "({0})",  # a check beside the kernel has looked
    "logaddexp": "logaddexp_{T}({0}, {1})",
    "logaddexp2": "logaddexp2_{T}({0}, {1})",
    **{name: f"{name}{{F}}({{0}})" for name in LIBRARY - OF_TWO},
    **{name: f"{name}{{F}}({{0}}, {{1}})" for name in OF_TWO},
}
# Where a number may have a sign though it is zero, or be no number at all.
OF_FLOATING: dict[str, str] = {
    "abs": "fabs{F}({0})",
    "fmod": "fmod_{T}({0}, {1})",
    "sinh": "sinh_{T}({0})",
    "cosh": "cosh_{T}({0})",
}
# Of integers, by a number that is neither 0 nor -1.
OF_INTEGERS: dict[str, str] = {
    "trunc_divide": "({0} / {1})",
    "fmod": "({0} % {1})",
}

# Reductions: the value of nothing, how one more value is taken in, and the clause for a vector loop.
REDUCTIONS: dict[str, tuple[str, str, str]] = {
    "sum": ("0", "{0} + {1}", "+"),
    "prod": ("1", "{0} * {1}", "*"),
    "max": ("LOWEST_{T}", "max_{T}({0}, {1})", "max_{T}"),
    "min": ("HIGHEST_{T}", "min_{T}({0}, {1})", "min_{T}"),
    "any": ("0", "({0} | {1})", "|"),
    "all": ("1", "({0} & {1})", "&"),
}


def library_suffix(dtype: torch.dtype) -> str:
    return "" if dtype == torch.float64 else "f"


def operation(op: str, dtype: torch.dtype, args: list[str]) -> str:
    """The C expression of an operation whose arguments have the given dtype."""
    kind = COMPUTED[dtype]
    own = OF_FLOATING if dtype.is_floating_point else OF_INTEGERS
    template = own.get(op) or TEMPLATES[op]
    template = template.replace("{F}", library_suffix(dtype)).replace("{T}", kind).replace("(T)", f"({kind})")
    return template.format(*args)


def conversion(source: torch.dtype, target: torch.dtype, text: str) -> str:
    """A value as a dtype: another one, or its own as memory holds it."""
    if source == target and target not in (torch.bfloat16, torch.float16):
        return text
    if target == torch.bool:
        return f"({text} != 0)"
    if target == torch.bfloat16:
        return text if source == torch.bool else f"round_bfloat16({text})"
    if target == torch.float16:
        return f"round_float16({text})"
    if target == torch.uint8 and source.is_floating_point:
        text = f"(int64_t){text}"  # what is negative wraps around
    return f"({COMPUTED[target]}){text}"


def literal(value: Any, dtype: torch.dtype) -> str:
    """A number of the program in C."""
    if isinstance(value, (Size, Fraction)):
        return f"(({COMPUTED[dtype]}){value})"
    if dtype == torch.bool:
        return "1" if value else "0"
    if not dtype.is_floating_point:
        whole = int(value)
        wide = "LL" if abs(whole) >= 2**31 else ""
        return "INT64_MIN" if whole == -(2**63) else f"(({COMPUTED[dtype]}){whole}{wide})"
    suffix = library_suffix(dtype)
    number = float(value)
    if suffix:
        number = float(torch.tensor(number, dtype=torch.float64, device="cpu").to(torch.float32))
    if math.isnan(number):
        return f"({COMPUTED[dtype]})NAN"
    if math.isinf(number):
        return f"({COMPUTED[dtype]}){'-' if number < 0 else ''}INFINITY"
    text = repr(number)
    if "e" not in text and "." not in text:
        text += ".0"
    return f"({text}{suffix})" if number < 0 else f"{text}{suffix}"
