"""C functions for half precision: from and to memory, and rounding in a register.

They work on bits, because compilers turn that into vector code, which most do not do with half types of their own.
All round to the nearest, to even in the middle.
"""

from __future__ import annotations

_BITS = """\
static inline uint32_t bits_of(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}
"""
_FLOAT = """\
static inline float float_of(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
"""

# Name -> the C that defines it; a helper may use those above it.
HALVES: dict[str, str] = {
    "bits_of": _BITS,
    "float_of": _FLOAT,
    "from_bfloat16": "static inline float from_bfloat16(uint16_t bits) { return float_of((uint32_t)bits << 16); }\n",
    # Of a number that is rounded already.
    "bits_of_bfloat16": "static inline uint16_t bits_of_bfloat16(float value) { return bits_of(value) >> 16; }\n",
    "round_bfloat16": """\
static inline float round_bfloat16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
    return float_of(value != value ? 0x7fc00000 : rounded);
}
""",
    "to_bfloat16": """\
static inline uint16_t to_bfloat16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return value != value ? 0x7fc0 : (uint16_t)rounded;
}
""",
    # Exponents are 112 less than those of float. What is below the smallest normal number is counted in units of
    # 2^-24: the last place of floats from a half to one, and of those from 2^-14 on when 14 places are cut off.
    "from_float16": """\
static inline float from_float16(uint16_t half) {
    uint32_t size = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t normal = size + (112u << 23) + (size >= 0x7c00u << 13 ? 112u << 23 : 0);
    uint32_t small = bits_of(float_of(size + (113u << 23)) - float_of(113u << 23));
    return float_of((size < 0x400u << 13 ? small : normal) | sign);
}
""",
    # A sum with a power of two that is 13 places above the number has as many places less. What reaches 2^16 is
    # infinite.
    "round_float16": """\
static inline float round_float16(float value) {
    uint32_t bits = bits_of(value), power = bits & 0x7f800000;
    power = power < 0x38800000 ? 0x38800000 : power;
    power = power > 0x47800000 ? 0x47800000 : power;
    float high = float_of(power + (13u << 23)), size = (float_of(bits & 0x7fffffff) + high) - high;
    return float_of(bits_of(size >= 65536.0f ? INFINITY : size) | (bits & 0x80000000));
}
""",
    "to_float16": """\
static inline uint16_t to_float16(float value) {
    uint32_t bits = bits_of(value), size = bits & 0x7fffffff;
    uint32_t normal = (size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13;
    uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000;
    uint32_t finite = size < 0x38800000 ? small : size >= 0x47800000 ? 0x7c00 : normal;
    return (uint16_t)((value != value ? 0x7e00 : finite) | ((bits >> 16) & 0x8000));
}
""",
    "bits_of_float16": """\
static inline uint16_t bits_of_float16(float value) {
    uint32_t bits = bits_of(value), size = bits & 0x7fffffff;
    uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000;
    uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t finite = size < 0x38800000 ? small : (size - (112u << 23)) >> 13;
    return (uint16_t)((size >= 0x47800000 ? large : finite) | ((bits >> 16) & 0x8000));
}
""",
}
