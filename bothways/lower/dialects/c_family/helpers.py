"""C functions for operations that are more than an expression: a text for each, written for each type it is for."""

from __future__ import annotations

from bothways import torch_compat

# Of floating point numbers; F is the suffix of the library's functions.
FLOATING: dict[str, str] = {
    # Rounded once where the CPU can, as ATen's kernels are compiled.
    "multiply_add": """\
static inline {T} multiply_add_{T}({T} a, {T} b, {T} c) {{
#ifdef __FP_FAST_FMA
    return __builtin_fma{F}(a, b, c);
#else
    return a * b + c;
#endif
}}
""",
    # The library ATen has its vector functions from gives up where the quotient overflows, which it estimates by the
    # number below the dividend times the number below the divisor's reciprocal. Whether that is infinite is read off
    # its bits: compilers draw conclusions from comparisons with infinity.
    "fmod": """\
static inline {T} fmod_{T}({T} a, {T} b) {{
    {T} dividend = fabs{F}(a), divisor = fabs{F}(b), reciprocal;
    {BITS} bits;
    if (divisor < {LEAST}) dividend *= {SCALE}, divisor *= {SCALE};
    reciprocal = 1 / divisor;
    __builtin_memcpy(&bits, &reciprocal, sizeof bits);
    bits = reciprocal != 0 ? bits - 1 : bits;
    __builtin_memcpy(&reciprocal, &bits, sizeof bits);
    __builtin_memcpy(&bits, &dividend, sizeof bits);
    bits = dividend != 0 ? bits - 1 : bits;
    __builtin_memcpy(&dividend, &bits, sizeof bits);
    reciprocal *= dividend;
    __builtin_memcpy(&bits, &reciprocal, sizeof bits);
    return bits == {INFINITE} ? ({T})NAN : fmod{F}(a, b);
}}
""",
    # The same library: infinite from where the exponential is, though half of it would not be; of doubles, and of
    # floats in older versions.
    "sinh": """\
static inline {T} sinh_{T}({T} a) {{
    return fabs{F}(a) > {LAST_EXP} ? copysign{F}(({T})INFINITY, a) : sinh{F}(a);
}}
""",
    "cosh": """\
static inline {T} cosh_{T}({T} a) {{
    return fabs{F}(a) > {LAST_EXP} ? ({T})INFINITY : cosh{F}(a);
}}
""",
    # The remainder has the sign of the divisor.
    "remainder": """\
static inline {T} remainder_{T}({T} a, {T} b) {{
    {T} r = fmod_{T}(a, b);
    return (r != 0 && ((b < 0) != (r < 0))) ? r + b : r;
}}
""",
    # As Python does it: the quotient that belongs to the remainder, made whole.
    "floor_divide": """\
static inline {T} floor_divide_{T}({T} a, {T} b) {{
    if (b == 0) return a / b;
    {T} r = fmod{F}(a, b);
    {T} q = (a - r) / b;
    if (r != 0 && ((b < 0) != (r < 0))) q -= 1;
    if (q == 0) return copysign{F}(0, a / b);
    {T} whole = floor{F}(q);
    return q - whole > ({T})0.5 ? whole + 1 : whole;
}}
""",
    "sinc": """\
static inline {T} sinc_{T}({T} a) {{
    {T} x = a * ({T})3.14159265358979323846;
    return a == 0 ? 1 : sin{F}(x) / x;
}}
""",
    # Two infinities of one sign have no difference.
    "logaddexp": """\
static inline {T} logaddexp_{T}({T} a, {T} b) {{
    {T} high = (a >= b || a != a) ? a : b, low = (a >= b || a != a) ? b : a;
    return (a == b && fabs{F}(a) == ({T})INFINITY) ? a : high + log1p{F}(exp{F}(low - high));
}}
""",
    "logaddexp2": """\
static inline {T} logaddexp2_{T}({T} a, {T} b) {{
    {T} high = (a >= b || a != a) ? a : b, low = (a >= b || a != a) ? b : a;
    {T} rest = log1p{F}(exp2{F}(low - high)) * ({T})1.44269504088896340736;
    return (a == b && fabs{F}(a) == ({T})INFINITY) ? a : high + rest;
}}
""",
}

# Of integers, by a divisor that is neither 0 nor -1.
INTEGER: dict[str, str] = {
    "remainder": """\
static inline {T} remainder_{T}({T} a, {T} b) {{
    {T} r = a % b;
    return (r != 0 && ((b < 0) != (r < 0))) ? r + b : r;
}}
""",
    "floor_divide": """\
static inline {T} floor_divide_{T}({T} a, {T} b) {{
    {T} q = a / b;
    return (a % b != 0 && ((b < 0) != (a < 0))) ? q - 1 : q;
}}
""",
}

# What the texts take from a type: the bits of infinity, the last number whose exponential is finite, the smallest one
# with all its digits, and a power of two that makes such a one of every smaller one.
FACTS: dict[str, dict[str, str]] = {
    "float": {
        "F": "f", "BITS": "uint32_t", "INFINITE": "0x7f800000u",
        "LAST_EXP": "88.72283f" if torch_compat.is_cosh_infinite_early() else "3.4028234e38f",
        "LEAST": "0x1p-126f", "SCALE": "0x1p25f",
    },
    "double": {
        "F": "", "BITS": "uint64_t", "INFINITE": "0x7ff0000000000000u",
        "LAST_EXP": "709.7827111495575", "LEAST": "0x1p-1022", "SCALE": "0x1p54",
    },
}  # fmt: skip

NUMERIC: dict[str, str] = {
    f"{name}_{kind}": text.format(T=kind, **facts) for name, text in FLOATING.items() for kind, facts in FACTS.items()
} | {
    f"{name}_{kind}": text.format(T=kind)
    for name, text in INTEGER.items()
    for kind in ("int64_t", "int32_t", "int16_t", "int8_t", "uint8_t")
}

# A number in [0, 1) for each index: Philox 2x32 with ten rounds, whose counter is the index and whose key the seed.
_ROUND = """\
    product = (uint64_t)low * 0xD256D193u;
    low = (uint32_t)(product >> 32) ^ key ^ high;
    high = (uint32_t)product;
    key += 0x9E3779B9u;
"""
RANDOM = (
    """\
static inline float random_float(int64_t seed, int64_t index) {
    uint32_t low = (uint32_t)index, high = (uint32_t)(index >> 32) ^ (uint32_t)(seed >> 32), key = (uint32_t)seed;
    uint64_t product;
"""
    + _ROUND * 10
    + """\
    return (float)(low >> 8) * (1.0f / 16777216.0f);
}
"""
)
