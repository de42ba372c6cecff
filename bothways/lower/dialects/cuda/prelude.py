"""What stands above kernels in CUDA C++: types, conversions, vectors, and what threads do together.

No header is there for NVRTC to read, so everything is spelled here. ``HEAD`` is for a GPU; another one, under which the
same kernels run on a CPU, is in ``host_shim.py``.
"""

from __future__ import annotations

from bothways.lower.dialects.c_family.helpers import FACTS, FLOATING, INTEGER, RANDOM

HEAD = """\
typedef long long int64_t;
typedef int int32_t;
typedef short int16_t;
typedef signed char int8_t;
typedef unsigned long long uint64_t;
typedef unsigned int uint32_t;
typedef unsigned short uint16_t;
typedef unsigned char uint8_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define INT64_MIN (-9223372036854775807LL - 1)
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SHARED __shared__
#define RESTRICT __restrict__
#define INLINED static __forceinline__
#define ALIGNED(bytes) __align__(bytes)
#define UNROLL _Pragma("unroll")
#define TEAM_WAITS(which, threads) asm volatile("bar.sync %0, %1;" :: "r"(which), "r"(threads) : "memory")
#define BY_VALUE const __grid_constant__
#define STAYS(word) asm volatile("" : "+r"(word))
"""

_BITS = "static inline uint32_t bits_of(float value) { return __float_as_uint(value); }\n"
_FLOAT = "static inline float float_of(uint32_t bits) { return __uint_as_float(bits); }\n"
HALVES: dict[str, str] = {
    "bits_of": _BITS,
    "float_of": _FLOAT,
    "from_bfloat16": "static inline float from_bfloat16(uint16_t bits) { return float_of((uint32_t)bits << 16); }\n",
    "to_bfloat16": """\
static inline uint16_t to_bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
    uint32_t bits;  // of a pair, which takes a quarter of the time that one number takes
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(value));
    return (uint16_t)bits;
#else
    const uint32_t bits = bits_of(value);
    return value != value ? 0x7fff : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
}
""",
    # Of a number that is rounded already.
    "bits_of_bfloat16": "static inline uint16_t bits_of_bfloat16(float value) { return bits_of(value) >> 16; }\n",
    "round_bfloat16": """\
static inline float round_bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
    uint32_t bits;  // a pair whose second half is zero is the number itself
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(value), "f"(0.0f));
    return float_of(bits);
#else
    return from_bfloat16(to_bfloat16(value));
#endif
}
""",
    "from_float16": """\
static inline float from_float16(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
""",
    "to_float16": """\
static inline uint16_t to_float16(float value) {
#if __CUDA_ARCH__ >= 800
    uint32_t bits;  // of a pair, which takes a quarter of the time that one number takes
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(value));
    return (uint16_t)bits;
#else
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#endif
}
""",
    "bits_of_float16": "static inline uint16_t bits_of_float16(float value) { return to_float16(value); }\n",
    "round_float16": "static inline float round_float16(float value) { return from_float16(to_float16(value)); }\n",
}
# Two numbers in the halves of a word, the first in the lower one: as vectors of them lie in registers.
PAIRS: dict[str, str] = {
    "from_bfloat16_pair": """\
static inline float from_bfloat16_pair(uint32_t pair, int second) {
    return float_of(second ? pair & 0xffff0000u : pair << 16);
}
""",
    "pair_of_bfloat16": """\
static inline uint32_t pair_of_bfloat16(float first, float second) {
#if __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return to_bfloat16(first) | (uint32_t)to_bfloat16(second) << 16;
#endif
}
""",
    "rounded_pair_of_bfloat16": """\
static inline uint32_t rounded_pair_of_bfloat16(float first, float second) {
    return bits_of(first) >> 16 | (bits_of(second) & 0xffff0000u);
}
""",
    "from_float16_pair": """\
static inline float from_float16_pair(uint32_t pair, int second) {
    return from_float16((uint16_t)(second ? pair >> 16 : pair));
}
""",
    "pair_of_float16": """\
static inline uint32_t pair_of_float16(float first, float second) {
    return to_float16(first) | (uint32_t)to_float16(second) << 16;
}
""",
    "rounded_pair_of_float16": """\
static inline uint32_t rounded_pair_of_float16(float first, float second) {
    return pair_of_float16(first, second);
}
""",
}

_REMAINDER = """\
static inline {T} remainder_{T}({T} a, {T} b) {{
    {T} r = fmod{F}(a, b);
    return (r != 0 && ((b < 0) != (r < 0))) ? r + b : r;
}}
"""
_TEXTS = {**{name: FLOATING[name] for name in ("floor_divide", "sinc", "logaddexp", "logaddexp2")}}
NUMERIC: dict[str, str] = {
    **{
        f"{name}_{kind}": text.format(T=kind, **facts)
        for name, text in {**_TEXTS, "remainder": _REMAINDER}.items()
        for kind, facts in FACTS.items()
    },
    **{
        f"{name}_{kind}": text.format(T=kind)
        for name, text in INTEGER.items()
        for kind in ("int64_t", "int32_t", "int16_t", "int8_t", "uint8_t")
    },
}

# Functions without the ways aside that a compiler writes for numbers which are not met here: they are as many
# instructions again, and what stands behind waits for them. Within two of the last place's units of what they compute.
FUNCTIONS: dict[str, str] = {
    "inverse_float": """\
static inline float inverse_float(float value) {  // that is not below 2^-125; zero above 2^126
#ifdef __CUDA_ARCH__
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
    return inverse;
#else
    return value > 8.5070591730234616e37f ? 0 : 1 / value;
#endif
}
""",
    "power_of_two_float": """\
static inline float power_of_two_float(float value) {
#ifdef __CUDA_ARCH__
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
#else
    return exp2f(value);
#endif
}
""",
    # A quarter of the sum, so that its inverse is no number below the normal ones.
    "sigmoid_float": """\
static inline float sigmoid_float(float x) {
    return 0.25f * inverse_float(fmaf(expf(-x), 0.25f, 0.25f));
}
""",
    # For a result that is rounded to half precision.
    "sigmoid_of_half": """\
static inline float sigmoid_of_half(float x) {
    return 0.25f * inverse_float(fmaf(power_of_two_float(x * -1.442695041f), 0.25f, 0.25f));
}
""",
    "tanh_of_half": """\
static inline float tanh_of_half(float x) {
    const float square = x * x, power = power_of_two_float(x * 2.885390082f);
    const float slope = fmaf(square, 0.1333333333f, -0.3333333333f) * square;
    return copysignf(fabsf(x) < 0.25f ? fmaf(x, slope, x) : fmaf(inverse_float(power + 1), -2, 1), x);  // of -0, too
}
""",
    "sigmoid_double": "static inline double sigmoid_double(double x) { return 1 / (1 + exp(-x)); }\n",
    # Near zero as a polynomial, since the difference from one would lose digits.
    "tanh_float": """\
static inline float tanh_float(float x) {
    const float square = x * x, power = power_of_two_float(fabsf(x) * 2.885390043f);
    float slope = fmaf(square, 0.01573968306f, -0.05230396241f);
    slope = fmaf(square, slope, 0.1331529766f);
    slope = fmaf(square, slope, -0.3333276808f) * square;
    return copysignf(fabsf(x) < 0.6f ? fmaf(x, slope, x) : fmaf(inverse_float(power + 1), -2, 1), x);  // of -0, too
}
""",
    "tanh_double": "static inline double tanh_double(double x) { return tanh(x); }\n",
    "share_float": """\
static inline float share_float(float part, float whole) {
    const float near = inverse_float(whole), inverse = fmaf(near, fmaf(-whole, near, 1), near);
    const float share = part * inverse;
    return fmaf(fmaf(-whole, share, part), inverse, share);
}
""",
    "share_double": "static inline double share_double(double part, double whole) { return part / whole; }\n",
}

# Type -> its lowest and highest value.
ORDERED: dict[str, tuple[str, str]] = {
    "float": ("(-INFINITY)", "INFINITY"),
    "double": ("(-(double)INFINITY)", "((double)INFINITY)"),
    "int64_t": ("INT64_MIN", "9223372036854775807LL"),
    "int32_t": ("(-2147483647 - 1)", "2147483647"),
    "int16_t": ("((int16_t)-32768)", "((int16_t)32767)"),
    "int8_t": ("((int8_t)-128)", "((int8_t)127)"),
    "uint8_t": ("((uint8_t)0)", "((uint8_t)255)"),
}


_EXTREME = "static inline {T} {name}_{T}({T} a, {T} b) {{ return (b {sign} a || b != b) ? b : a; }}\n"
_EXTREME_OF_FLOATS = """\
static inline float {name}_float(float a, float b) {{
#if __CUDA_ARCH__ >= 800
    float result;  // one instruction
    asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return (b {sign} a || b != b) ? b : a;
#endif
}}
"""


def _extremes(kind: str, lowest: str, highest: str) -> dict[str, str]:
    """The order of two values, where a NaN wins."""
    text = _EXTREME_OF_FLOATS if kind == "float" else _EXTREME
    return {
        f"LOWEST_{kind}": f"#define LOWEST_{kind} {lowest}\n",
        f"HIGHEST_{kind}": f"#define HIGHEST_{kind} {highest}\n",
        f"max_{kind}": text.format(T=kind, name="max", sign=">"),
        f"min_{kind}": text.format(T=kind, name="min", sign="<"),
    }


SIZES = {"uint8_t": 1, "int8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4, "float": 4, "int64_t": 8, "double": 8}
WIDTHS = (2, 4, 8)
# Of eight bytes, in a table by value: no more fit a kernel's parameters, for which newer drivers have 32 KB.
FEW_WORDS, MANY_WORDS = 500, 4095
WORDS = (64, 128, 256, FEW_WORDS, *range(576, MANY_WORDS, 64), MANY_WORDS)

# So many elements at once, where they lie as memory wants it; else one by one, as many as there are.
_VECTOR = """\
typedef struct ALIGNED({align}) {{ {T} at[{width}]; }} {T}_{width};
static inline void load_{T}_{width}({T} *to, const {T} *RESTRICT from, int whole, int count) {{
    if (whole) {{
        const {T}_{width} all = *(const {T}_{width} *)from;
        UNROLL
        for (int v = 0; v < {width}; ++v) to[v] = all.at[v];
    }} else {{
        UNROLL
        for (int v = 0; v < {width}; ++v) to[v] = v < count ? from[v] : ({T})0;
    }}
}}
static inline void store_{T}_{width}({T} *to, const {T} *from, int whole, int count) {{
    if (whole) {{
        {T}_{width} all;
        UNROLL
        for (int v = 0; v < {width}; ++v) all.at[v] = from[v];
        *({T}_{width} *)to = all;
    }} else {{
        UNROLL
        for (int v = 0; v < {width}; ++v) if (v < count) to[v] = from[v];
    }}
}}
"""


_VECTOR_OF_PAIRS = """\
typedef struct ALIGNED({align}) {{ uint32_t at[{half}]; }} pairs_{width};
static inline void load_pairs_{width}(uint32_t *to, const uint16_t *RESTRICT from, int whole, int count) {{
    if (whole) {{
        const pairs_{width} all = *(const pairs_{width} *)from;
        UNROLL
        for (int v = 0; v < {half}; ++v) to[v] = all.at[v];
    }} else {{
        UNROLL
        for (int v = 0; v < {half}; ++v) {{
            to[v] = 2 * v < count ? from[2 * v] : 0;
            if (2 * v + 1 < count) to[v] |= (uint32_t)from[2 * v + 1] << 16;
        }}
    }}
}}
static inline void store_pairs_{width}(uint16_t *to, const uint32_t *from, int whole, int count) {{
    if (whole) {{
        pairs_{width} all;
        UNROLL
        for (int v = 0; v < {half}; ++v) all.at[v] = from[v];
        *(pairs_{width} *)to = all;
    }} else {{
        UNROLL
        for (int v = 0; v < {width}; ++v) if (v < count) to[v] = (uint16_t)(from[v / 2] >> v % 2 * 16);
    }}
}}
"""


def _vectors() -> dict[str, str]:
    helpers = {}
    for width in WIDTHS:
        text = _VECTOR_OF_PAIRS.format(width=width, half=width // 2, align=min(16, 2 * width))
        helpers[f"vectors_of_pairs_{width}"] = text
        helpers[f"load_pairs_{width}"] = helpers[f"store_pairs_{width}"] = f"// vectors_of_pairs_{width}\n"
    for kind, size in SIZES.items():
        for width in WIDTHS:
            text = _VECTOR.format(T=kind, width=width, align=min(16, size * width))
            # Both names lead to the one text.
            helpers[f"vectors_{kind}_{width}"] = text
            helpers[f"load_{kind}_{width}"] = helpers[f"store_{kind}_{width}"] = f"// vectors_{kind}_{width}\n"
    return helpers


# The value that another thread of a warp has, whose number differs in one bit.
_SHUFFLED = {
    "float": "__shfl_xor_sync(0xffffffffu, value, bit)",
    "double": "__shfl_xor_sync(0xffffffffu, value, bit)",
    "int64_t": "__shfl_xor_sync(0xffffffffu, value, bit)",
    "int32_t": "__shfl_xor_sync(0xffffffffu, value, bit)",
    "int16_t": "(int16_t)__shfl_xor_sync(0xffffffffu, (int)value, bit)",
    "int8_t": "(int8_t)__shfl_xor_sync(0xffffffffu, (int)value, bit)",
    "uint8_t": "(uint8_t)__shfl_xor_sync(0xffffffffu, (int)value, bit)",
}

# An index that is out of range is an error of the device, as it is in eager.
WITHIN = """\
static inline int64_t within(int64_t index, int64_t size) {
    if ((uint64_t)index >= (uint64_t)size) __assertfail("index out of bounds", "kernels.cu", 0, "within", 1);
    return index;
}
"""

# Name -> the text that defines it; a helper may use those above it.
HELPERS: dict[str, str] = {
    **HALVES,
    **PAIRS,
    **NUMERIC,
    **FUNCTIONS,
    "random_float": RANDOM,
    "within": WITHIN,
    "as_double": "static inline double as_double(int64_t bits) { return __longlong_as_double(bits); }\n",
    **{f"Words_{count}": f"typedef struct {{ int64_t word[{count}]; }} Words_{count};\n" for count in WORDS},
    **{name: text for kind, ends in ORDERED.items() for name, text in _extremes(kind, *ends).items()},
    **_vectors(),
    **{
        f"shuffled_{kind}": f"static inline {kind} shuffled_{kind}({kind} value, int bit) {{ return {text}; }}\n"
        for kind, text in _SHUFFLED.items()
    },
}
