"""The helpers that kernels in C call: what more than an expression it takes to do what ATen does."""

from __future__ import annotations

from bothways.building.declarations import BASIC
from bothways.lower.dialects.c.half_helpers import HALVES
from bothways.lower.dialects.c.products import FUNCTIONS, MULTIPLY, MULTIPLY_FEW
from bothways.lower.dialects.c_family.helpers import NUMERIC, RANDOM

# C type -> its lowest and highest value.
ORDERED: dict[str, tuple[str, str]] = {
    "float": ("(-INFINITY)", "INFINITY"),
    "double": ("(-(double)INFINITY)", "((double)INFINITY)"),
    "int64_t": ("INT64_MIN", "__INT64_MAX__"),
    "int32_t": ("(-__INT32_MAX__ - 1)", "__INT32_MAX__"),
    "int16_t": ("(-__INT16_MAX__ - 1)", "__INT16_MAX__"),
    "int8_t": ("(-__INT8_MAX__ - 1)", "__INT8_MAX__"),
    "uint8_t": ("0", "__UINT8_MAX__"),
}

# The order of two values, where a NaN wins, as a function and as a reduction of a vector loop.
EXTREME = """\
static inline {T} {name}({T} a, {T} b) {{ return (b {sign} a || b != b) ? b : a; }}
#pragma omp declare reduction({name} : {T} : omp_out = {name}(omp_out, omp_in)) initializer(omp_priv = {start})
"""

# 0, of which a compiler may conclude nothing; read once in a kernel.
UNKNOWN_ZERO = "static inline int64_t unknown_zero(void) { volatile int64_t zero = 0; return zero; }\n"


def _extremes(kind: str, lowest: str, highest: str) -> dict[str, str]:
    return {
        f"LOWEST_{kind}": f"#define LOWEST_{kind} {lowest}\n",
        f"HIGHEST_{kind}": f"#define HIGHEST_{kind} {highest}\n",
        f"max_{kind}": EXTREME.format(T=kind, name=f"max_{kind}", sign=">", start=f"LOWEST_{kind}"),
        f"min_{kind}": EXTREME.format(T=kind, name=f"min_{kind}", sign="<", start=f"HIGHEST_{kind}"),
    }


# Name -> the C that defines it; a helper may use those above it.
HELPERS: dict[str, str] = {
    **BASIC,
    **HALVES,
    **NUMERIC,
    "random_float": RANDOM,
    "unknown_zero": UNKNOWN_ZERO,
    "products": FUNCTIONS,
    "multiply": MULTIPLY,
    "multiply_few": MULTIPLY_FEW,
    **{name: text for kind, ends in ORDERED.items() for name, text in _extremes(kind, *ends).items()},
}
