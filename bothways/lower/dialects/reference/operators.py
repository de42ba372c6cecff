"""What each primitive operation does to single numbers, in as many digits as Python has; the caller rounds the result.

A table from names to functions: one line each where one line will do. Functions of the C library are called in double
precision, since those of Python raise where floating point has an infinity or a NaN.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import operator
from collections.abc import Callable
from typing import Any

from bothways.lower.dialects.reference.numbers import float32

_library = ctypes.CDLL(ctypes.util.find_library("m"))
OF_ONE = (
    "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "floor ceil trunc rint fabs lgamma".split()
)
OF_TWO = "pow atan2 fmod hypot copysign nextafter".split()


def _from_library(name: str, count: int, kind: Any = ctypes.c_double) -> Callable[..., Any]:
    function: Callable[..., Any] = _library[name]
    function.argtypes, function.restype = [kind] * count, kind  # type: ignore[attr-defined]
    return function


LIBRARY: dict[str, Callable[..., Any]] = {
    **{name: _from_library(name, 1) for name in OF_ONE},
    **{name: _from_library(name, 2) for name in OF_TWO},
}
exp, log, log1p, sin, sqrt, exp2 = (LIBRARY[name] for name in ("exp", "log", "log1p", "sin", "sqrt", "exp2"))


def div(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def remainder(a: Any, b: Any) -> Any:
    """What is left has the sign of the divisor."""
    if isinstance(a, int):
        return a % b
    rest = LIBRARY["fmod"](a, b)
    return rest + b if rest != 0 and (b < 0) != (rest < 0) else rest


def floor_divide(a: Any, b: Any) -> Any:
    """The quotient that belongs to the remainder, made whole."""
    if isinstance(a, int):
        return a // b
    if b == 0:
        return div(a, b)
    rest = LIBRARY["fmod"](a, b)
    quotient = (a - rest) / b
    if rest != 0 and (b < 0) != (rest < 0):
        quotient -= 1
    if quotient == 0:
        return math.copysign(0.0, a / b)
    below = LIBRARY["floor"](quotient)
    return below + 1 if quotient - below > 0.5 else below


def trunc_divide(a: Any, b: Any) -> Any:
    if isinstance(a, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return LIBRARY["trunc"](div(a, b))


def fmod(a: Any, b: Any) -> Any:
    """What is left has the sign of the dividend."""
    return a - b * trunc_divide(a, b) if isinstance(a, int) else LIBRARY["fmod"](a, b)


def maximum(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


def minimum(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


def sinc(a: float) -> float:
    return sin(a * math.pi) / (a * math.pi) if a else 1.0


def sinc_single(a: float) -> float:
    """The angle is rounded, as it is where sines are computed in single precision: at whole numbers that is all."""
    angle = float32(a * float32(math.pi))
    return sin(angle) / angle if a else 1.0


def entr(a: float) -> float:
    if a != a:
        return a
    return -a * log(a) if a > 0 else 0.0 if a == 0 else -math.inf


def xlogy(a: float, b: float) -> float:
    return b if b != b else 0.0 if a == 0 else a * log(b)


def xlog1py(a: float, b: float) -> float:
    return b if b != b else 0.0 if a == 0 else a * log1p(b)


def logaddexp(a: float, b: float) -> float:
    if a == b and math.isinf(a):
        return a
    high, low = (a, b) if a >= b or a != a else (b, a)
    return high + log1p(exp(low - high))


def logaddexp2(a: float, b: float) -> float:
    if a == b and math.isinf(a):
        return a
    high, low = (a, b) if a >= b or a != a else (b, a)
    return high + log1p(exp2(low - high)) / math.log(2)


def random(seed: int, index: int) -> float:
    """A number in [0, 1) for each index: Philox 2x32 with ten rounds."""
    word = 0xFFFFFFFF
    low, high, key = index & word, (index >> 32 ^ seed >> 32) & word, seed & word
    for _ in range(10):
        product = low * 0xD256D193
        low, high = (product >> 32 ^ key ^ high) & word, product & word
        key = (key + 0x9E3779B9) & word
    return (low >> 8) / 16777216


OPERATIONS: dict[str, Callable[..., Any]] = {
    **LIBRARY,
    "copy": lambda a: a,
    "constant": lambda a: a,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": div,
    "share": div,
    "multiply_add": _from_library("fma", 3),  # rounded once
    "neg": operator.neg,
    "reciprocal": lambda a: div(1.0, a),
    "rsqrt": lambda a: div(1.0, sqrt(a)),
    "sigmoid": lambda a: 1 / (1 + exp(-a)),
    "square": lambda a: a * a,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "relu": lambda a: 0 if a < 0 else a,
    "clamp_min": lambda a, b: b if a < b else a,
    "clamp_max": lambda a, b: b if a > b else a,
    "maximum": maximum,
    "minimum": minimum,
    "fmax": lambda a, b: a if a >= b or b != b else b,
    "fmin": lambda a, b: a if a <= b or b != b else b,
    "where": lambda condition, a, b: a if condition else b,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_xor": lambda a, b: bool(a) != bool(b),
    "logical_not": operator.not_,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "bitwise_not": operator.invert,
    "isnan": lambda a: a != a,
    "isinf": lambda a: abs(a) == math.inf,
    "isfinite": lambda a: abs(a) < math.inf,
    "isposinf": lambda a: a == math.inf,
    "isneginf": lambda a: a == -math.inf,
    "signbit": lambda a: math.copysign(1, a) < 0,
    "remainder": remainder,
    "floor_divide": floor_divide,
    "trunc_divide": trunc_divide,
    "fmod": fmod,
    "deg2rad": lambda a: a * (math.pi / 180),
    "rad2deg": lambda a: a * (180 / math.pi),
    "sinc": sinc,
    "entr": entr,
    "xlogy": xlogy,
    "xlog1py": xlog1py,
    "random": random,
    "within": lambda index, size: index,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
}
# What is another one in single precision than what double precision gives, rounded.
OF_SINGLE: dict[str, Callable[..., Any]] = {
    "nextafter": _from_library("nextafterf", 2, ctypes.c_float),
    "multiply_add": _from_library("fmaf", 3, ctypes.c_float),
    "sinc": sinc_single,
}

# Reductions: how one more value is taken in.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": operator.add,
    "prod": operator.mul,
    "max": lambda a, b: b if b > a or b != b else a,
    "min": lambda a, b: b if b < a or b != b else a,
    "any": lambda a, b: a or b,
    "all": lambda a, b: a and b,
}
