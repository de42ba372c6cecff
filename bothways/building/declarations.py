"""What stands above the functions of a C file: types, the functions of the C library they call, and helpers.

Only what is named is written, and no header is included: reading <math.h> and <stdlib.h> takes a compiler as long as
a small kernel does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

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

# gcc from 13 on takes a product, a quotient or a sum that is infinite to have an infinite operand, though it may have
# overflowed, and what it knows of numbers that way it uses to leave out comparisons: x * 2 == INFINITY ? y : z makes
# x == INFINITY true. These are all the passes that use what it knows; other files keep them.
OVERFLOWS = """\
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 13
#pragma GCC optimize("no-tree-vrp", "no-thread-jumps", "no-tree-dominator-opts")
#endif
"""
# What such comparisons are with: infinity, or the largest numbers.
COMPARED = ("INFINITY", "e+38", "e+308")

# Where a loop is too short for threads, gcc still has the runtime make a team of one, which takes longer than short
# loops do. Such a loop is a call here: outside of any team it finds itself to be thread 0 of 1, as in that team.
TEAMS = """\
#if defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
void GOMP_parallel_start(void (*)(void *), void *, unsigned);
void GOMP_parallel_end(void);
int omp_in_parallel(void);
__attribute__((weak, visibility("hidden")))
void GOMP_parallel(void (*loop)(void *), void *data, unsigned threads, unsigned flags) {
    if (threads == 1 && !omp_in_parallel()) { loop(data); return; }
    GOMP_parallel_start(loop, data, threads);
    loop(data);
    GOMP_parallel_end();
}
#endif
"""
SHARED = "if(parallel :"  # how such loops begin

# Functions of <math.h>; single precision has the same name and an f.
LIBRARY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "pow atan2 fmod floor ceil trunc rint fabs hypot copysign nextafter lgamma".split()
)
OF_TWO = frozenset(("pow", "atan2", "fmod", "hypot", "copysign", "nextafter"))
# Those of glibc's vector library, where it is there.
VECTORIZED = tuple(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "pow atan2 hypot".split()
)

# What every C file may use: name -> the C that declares it. ``Given`` is what functions that Python enters are given.
BASIC: dict[str, str] = {
    "malloc": "void *malloc(__SIZE_TYPE__);\n",
    "free": "void free(void *);\n",
    "Given": "typedef union { void *pointer; int64_t number; double fraction; } Given;\n",
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


def prelude(
    kernels: str, vectorized: Callable[[Iterable[str]], Collection[str]], own: dict[str, str] | None = None
) -> str:
    """What ``kernels`` need above them. ``vectorized`` tells which functions have vector variants.

    ``own`` are the helpers there are: name -> the C that defines it; a helper may use those above it.
    """
    used = words(kernels)
    helpers: list[str] = []
    for name, text in reversed((BASIC if own is None else own).items()):
        if name in used:
            helpers.insert(0, text)
            used |= words(text)
    functions = [name for name in FUNCTIONS if name in used]
    vectors = vectorized(functions)
    below = "".join([*helpers, kernels])
    lines = [*([OVERFLOWS] if any(number in below for number in COMPARED) else []), TYPES]
    for name in functions:
        lines += ["#pragma omp declare simd notinbranch\n"] * (name in vectors) + [FUNCTIONS[name]]
    if SHARED in below:
        lines.append(TEAMS)
    return "".join([*lines, *helpers])
