"""What stands above the kernels in a C file: types, the functions of the C library they call, and our own helpers.

Only what the kernels name is written, and no header is included: reading <math.h> and <stdlib.h> takes a compiler
as long as a small kernel does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from bothways.lower.c_helpers import NUMERIC, RANDOM
from bothways.lower.c_ops import LIBRARY, OF_TWO
from bothways.lower.entry_source import GIVEN
from bothways.lower.half_helpers import HALVES

# Both gcc and clang define what these stand for.
TYPES = """\
typedef __INT64_TYPE__ int64_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT8_TYPE__ int8_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT8_TYPE__ uint8_t;
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define INT64_MIN (-__INT64_MAX__ - 1)
"""

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


def _extremes(kind: str, lowest: str, highest: str) -> dict[str, str]:
    return {
        f"LOWEST_{kind}": f"#define LOWEST_{kind} {lowest}\n",
        f"HIGHEST_{kind}": f"#define HIGHEST_{kind} {highest}\n",
        f"max_{kind}": EXTREME.format(T=kind, name=f"max_{kind}", sign=">", start=f"LOWEST_{kind}"),
        f"min_{kind}": EXTREME.format(T=kind, name=f"min_{kind}", sign="<", start=f"HIGHEST_{kind}"),
    }


# Name -> the C that defines it; a helper may use those above it.
HELPERS: dict[str, str] = {
    "malloc": "void *malloc(__SIZE_TYPE__);\n",
    "free": "void free(void *);\n",
    "Given": GIVEN,
    **HALVES,
    **NUMERIC,
    "random_float": RANDOM,
    **{name: text for kind, ends in ORDERED.items() for name, text in _extremes(kind, *ends).items()},
}

# Name in C -> its declaration, in double and in single precision.
FUNCTIONS: dict[str, str] = {
    f"{name}{suffix}": f"{kind} {name}{suffix}({', '.join([kind] * (2 if name in OF_TWO else 1))});\n"
    for name in sorted(LIBRARY)
    for kind, suffix in (("double", ""), ("float", "f"))
}


def words(text: str) -> set[str]:
    """The identifiers of a piece of C."""
    return set(re.findall(r"[A-Za-z_]\w*", text))


def prelude(kernels: str, vectorized: Callable[[Iterable[str]], Collection[str]]) -> str:
    """What ``kernels`` need above them. ``vectorized`` tells which functions have vector variants."""
    used = words(kernels)
    helpers: list[str] = []
    for name, text in reversed(HELPERS.items()):
        if name in used:
            helpers.insert(0, text)
            used |= words(text)
    functions = [name for name in FUNCTIONS if name in used]
    vectors = vectorized(functions)
    lines = [TYPES]
    for name in functions:
        lines += ["#pragma omp declare simd notinbranch\n"] * (name in vectors) + [FUNCTIONS[name]]
    return "".join([*lines, *helpers])
