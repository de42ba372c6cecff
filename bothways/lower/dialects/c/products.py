"""Products of matrices in C: calls of the BLAS that PyTorch has loaded, with the arguments that ATen gives it.

Which matrix is the left one for BLAS, which are transposed and which are copied first is decided as ATen decides it,
from sizes and strides. A product that the user allows to be less precise is left to ATen. The library learns the
address of BLAS when it is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any

from bothways import torch_compat
from bothways.building.loading import Library
from bothways.lower.ir.prims import Memory
from bothways.lower.schedule.tree import Matrix, Product

# A library's ``Products``: what it calls. Four are ATen's, which raise nothing but say that they failed.
FUNCTIONS = """\
typedef struct {
    void (*sgemm)(
        const char *, const char *, const int *, const int *, const int *, const float *, const float *, const int *,
        const float *, const int *, const float *, float *, const int *
    );
    const void *settings;
    int (*precision)(const void *, int, int);
    int32_t (*matrix)(
        void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t, void **
    );
    int32_t (*mm)(void *, void *, void *);
    int32_t (*addmm)(void *, void *, void *, void *, double, double);
    int32_t (*drop)(void *);
    const void *adds_in_order;  // whether BLAS adds up few columns one product after the other
} Products;
extern __attribute__((visibility("hidden"))) Products products;
"""

# Columns that lie side by side are rows to BLAS: ATen gives it the right matrix first, unless the result is a column.
MULTIPLY = """\
static int lie(
    int64_t down, int64_t across, int64_t rows, int64_t columns, int swaps, int *turned, int64_t *far
) {
    const int side_by_side = across == 1 && down >= (columns > 1 ? columns : 1);
    const int below = down == 1 && across >= (rows > 1 ? rows : 1);
    // Where both is so, it is what BLAS need not turn; what is neither is copied to lie side by side.
    *turned = swaps ? !side_by_side && below : !below;
    *far = side_by_side && (swaps || !below) ? down : below ? across : columns;
    return side_by_side || below;
}

static const float *copied(
    const float *from, int64_t rows, int64_t columns, int64_t down, int64_t across, void **taken
) {
    *taken = malloc(rows * columns * sizeof(float) + 64);
    if (!*taken) return 0;
    float *to = (float *)(((uint64_t)*taken + 63) / 64 * 64);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column)
            to[row * columns + column] = from[row * down + column * across];
    return to;
}

static void *matrix(const float *at, int64_t rows, int64_t columns, int64_t down, int64_t across) {
    const int64_t sizes[] = {rows, columns}, strides[] = {down, across};
    void *made = 0;
    return products.matrix((void *)at, 2, sizes, strides, 0, 6, 0, 0, &made) ? 0 : made;  // 6 is float, 0 the CPU
}

// A product by ATen, which heeds what was asked of it. False where there is no memory.
static int multiplied(
    int64_t rows, int64_t inner, int64_t columns, const float *left, int64_t down, int64_t across,
    const float *right, int64_t right_down, int64_t right_across, float *into, float kept
) {
    void *one = matrix(left, rows, inner, down, across);
    void *other = matrix(right, inner, columns, right_down, right_across);
    void *out = matrix(into, rows, columns, columns, 1);
    const int can = one && other && out;
    const int done = can && !(kept ? products.addmm(out, out, one, other, 1, 1) : products.mm(out, one, other));
    if (one) products.drop(one);
    if (other) products.drop(other);
    if (out) products.drop(out);
    return done;
}

// Without any memory, for matrices of any size.
static void multiply_slowly(
    int64_t rows, int64_t inner, int64_t columns, const float *left, int64_t down, int64_t across,
    const float *right, int64_t right_down, int64_t right_across, float *into, float kept
) {
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column) {
            float sum = 0, *to = into + row * columns + column;
            for (int64_t at = 0; at < inner; ++at)
                sum += left[row * down + at * across] * right[at * right_down + column * right_across];
            *to = kept ? *to + sum : sum;
        }
}

static __attribute__((noinline)) void multiply(
    int64_t rows, int64_t inner, int64_t columns, const float *left, int64_t down, int64_t across,
    const float *right, int64_t right_down, int64_t right_across, float *into, float kept
) {
    if (!rows || !columns) return;
    const float *first = left, *second = right;
    const int swaps = columns != 1;
    const int64_t m = swaps ? columns : rows, n = swaps ? rows : columns, largest = __INT_MAX__;
    int64_t left_far, right_far, far = n == 1 ? m : columns;
    int left_turned, right_turned, fits = inner && products.precision(products.settings, 2, 3) < 2;
    void *of_left = 0, *of_right = 0;
    if (!lie(down, across, rows, inner, swaps, &left_turned, &left_far))
        fits = fits && (left = copied(left, rows, inner, down, across, &of_left));
    if (!lie(right_down, right_across, inner, columns, swaps, &right_turned, &right_far))
        fits = fits && (right = copied(right, inner, columns, right_down, right_across, &of_right));
    int a_turned = swaps ? right_turned : left_turned, b_turned = swaps ? left_turned : right_turned;
    int64_t a_far = swaps ? right_far : left_far, b_far = swaps ? left_far : right_far;
    if (a_turned ? m == 1 : inner == 1) a_far = a_turned ? inner : m;
    if (b_turned ? inner == 1 : n == 1) b_far = b_turned ? n : inner;
    fits = fits && m <= largest && n <= largest && inner <= largest;
    if (fits && a_far <= largest && b_far <= largest && far <= largest) {
        const int sizes[] = {m, n, inner, a_far, b_far, far};
        const float whole = 1;
        products.sgemm(
            a_turned ? "T" : "N", b_turned ? "T" : "N", sizes, sizes + 1, sizes + 2, &whole, swaps ? right : left,
            sizes + 3, swaps ? left : right, sizes + 4, &kept, into, sizes + 5
        );
    } else if (!inner || !multiplied(
        rows, inner, columns, first, down, across, second, right_down, right_across, into, kept
    )) {
        multiply_slowly(rows, inner, columns, first, down, across, second, right_down, right_across, into, kept);
    }
    if (of_left) free(of_left);
    if (of_right) free(of_right);
}
"""

# So many columns BLAS may add up in order, each product rounded by itself. It then takes ten times as long as this.
FEW = (2, 3, 4, 8)
MULTIPLY_FEW = """\
enum { FEW = 8, TOGETHER = 32, DEEP = 64 };

static __attribute__((noinline)) void multiply_few(
    int64_t rows, int64_t inner, int64_t columns, const float *left, int64_t down, int64_t across,
    const float *right, int64_t right_down, int64_t right_across, float *into, float kept
) {
    const int lies = (down == 1 || across == 1) && right_across == 1 && right_down >= columns;
    if (!products.adds_in_order || !lies || !inner || kept || products.precision(products.settings, 2, 3) >= 2) {
        multiply(rows, inner, columns, left, down, across, right, right_down, right_across, into, kept);
        return;
    }
    float sums[FEW][TOGETHER], turned[DEEP][TOGETHER];
    for (int64_t first = 0; first < rows; first += TOGETHER) {
        const int64_t count = rows - first < TOGETHER ? rows - first : TOGETHER;
        const int is_whole = down == 1 && count == TOGETHER;
        for (int64_t column = 0; column < columns; ++column)
            for (int64_t row = 0; row < TOGETHER; ++row) sums[column][row] = 0;
        for (int64_t begin = 0; begin < inner; begin += DEEP) {
            const int64_t depth = inner - begin < DEEP ? inner - begin : DEEP;
            const float *from = left + first * down + begin * across;
            if (!is_whole)
                for (int64_t row = 0; row < TOGETHER; ++row)
                    for (int64_t at = 0; at < depth; ++at)
                        turned[at][row] = row < count ? from[row * down + at * across] : 0;
            for (int64_t at = 0; at < depth; ++at) {
                const float *one = is_whole ? from + at * across : turned[at];
                const float *other = right + (begin + at) * right_down;
                for (int64_t column = 0; column < columns; ++column)
                    for (int64_t row = 0; row < TOGETHER; ++row) sums[column][row] += one[row] * other[column];
            }
        }
        for (int64_t row = 0; row < count; ++row)
            for (int64_t column = 0; column < columns; ++column)
                into[(first + row) * columns + column] = sums[column][row];
    }
}
"""

# What a library that multiplies has besides.
BINDING = """\
Products products;
void bind_products(const Products *given) { products = *given; }

"""
BIND = "bind_products"


class _Products(ctypes.Structure):
    _fields_ = [(field.name, ctypes.c_void_p) for field in fields(torch_compat.ProductFunctions)]


def can_multiply() -> bool:
    return torch_compat.product_functions() is not None


def bound(library: Library) -> bool:
    """Tell a library where the functions are that it calls; whether there are all it needs."""
    try:
        library.address(BIND)
    except ValueError:
        return True
    known = torch_compat.product_functions()
    if known is not None:
        library[BIND](ctypes.byref(_Products(*astuple(known))))
    return known is not None


def named(product: Product) -> dict[Memory, str]:
    """What pointers to its memories are called: the same in each product, so that like ones are one function."""
    places = {"added": product.added, "right": product.right, "left": product.left, "into": product.into}
    return {matrix.memory: name for name, matrix in places.items() if matrix is not None}


def written(product: Product, pointers: Mapping[Memory, str]) -> list[str]:
    """The lines of a product."""
    lines = []
    (rows, inner), columns = product.left.shape, product.right.shape[1]
    into = pointers[product.into.memory]
    if product.added is not None:
        down, across = product.added.strides
        places = ((step, name) for step, name in ((down, "row"), (across, "column")) if not _is_nothing(step))
        index = " + ".join(f"{name} * {step}" for step, name in places) or "0"
        lines += [
            f"    for (int64_t row = 0; row < {rows}; ++row)",
            f"        for (int64_t column = 0; column < {columns}; ++column)",
            f"            {into}[row * {columns} + column] = {_begin(product.added, pointers)}[{index}];",
        ]
    matrices = ", ".join(
        f"{_begin(one, pointers)}, {one.strides[0]}, {one.strides[1]}" for one in (product.left, product.right)
    )
    kept = 0 if product.added is None else 1
    is_few = type(columns) is int and columns in FEW and product.added is None
    multiply = "multiply_few" if is_few else "multiply"
    return [*lines, f"    {multiply}({rows}, {inner}, {columns}, {matrices}, {into}, {kept});"]


def _begin(matrix: Matrix, pointers: Mapping[Memory, str]) -> str:
    name = pointers[matrix.memory]
    return name if type(matrix.offset) is int and not matrix.offset else f"({name} + {matrix.offset})"


def _is_nothing(step: Any) -> bool:
    return type(step) is int and step == 0
