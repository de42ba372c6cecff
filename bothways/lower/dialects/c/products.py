"""Products of matrices in C: a call of the BLAS that PyTorch has loaded, with the arguments that ATen gives it.

A library is told where that is when it is loaded. Which of two matrices BLAS takes for the left one, and which lie
across, and which are copied first is decided as ATen does, from sizes and strides. What it computes with less precision
because the user wants that, it is asked to do itself.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import torch

from bothways import torch_compat
from bothways.building.loading import Library
from bothways.lower.ir.prims import Memory
from bothways.lower.schedule.tree import Matrix, Product

# A library's ``Products``: what it calls. The last is given what ``multiply`` is, as numbers.
FUNCTIONS = """\
typedef struct {
    void (*sgemm)(
        const char *, const char *, const int *, const int *, const int *, const float *, const float *, const int *,
        const float *, const int *, const float *, float *, const int *
    );
    const void *settings;
    int (*precision)(const void *, int, int);
    void (*aten)(const int64_t *);
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

static __attribute__((noinline)) void multiply(
    int64_t rows, int64_t inner, int64_t columns, const float *left, int64_t down, int64_t across,
    const float *right, int64_t right_down, int64_t right_across, float *into, float kept
) {
    if (!rows || !columns) return;
    const int64_t numbers[] = {
        rows, inner, columns, (int64_t)left, down, across, (int64_t)right, right_down, right_across, (int64_t)into,
        kept != 0
    };
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
    } else {
        products.aten(numbers);
    }
    if (of_left) free(of_left);
    if (of_right) free(of_right);
}
"""

# What a library that multiplies has besides.
BINDING = """\
Products products;
void bind_products(const Products *given) { products = *given; }

"""
BIND = "bind_products"


class _Products(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("sgemm", "settings", "precision", "aten")]


def can_multiply() -> bool:
    return torch_compat.product_functions() is not None


def bound(library: Library) -> bool:
    """Tell a library where the functions are that it calls; whether there are all it needs."""
    try:
        library.address(BIND)
    except ValueError:
        return True
    known = torch_compat.product_functions()
    if known is None:
        return False
    aten = ctypes.cast(_aten(), ctypes.c_void_p).value
    library[BIND](ctypes.byref(_Products(known.sgemm, known.settings, known.precision, aten)))
    return True


@functools.cache
def _aten() -> Any:
    """``_multiplied`` for C; kept, since libraries refer to it."""
    return ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64))(_multiplied)


def _multiplied(numbers: Any) -> None:
    """A product by ATen, of matrices in memory."""
    rows, inner, columns, left, down, across, right, right_down, right_across, into, adds = numbers[:11]
    with torch_compat.undisturbed():
        one = _matrix(left, (rows, inner), (down, across))
        other = _matrix(right, (inner, columns), (right_down, right_across))
        out = _matrix(into, (rows, columns), (columns, 1))
        if adds:
            torch.addmm(out, one, other, out=out)
        else:
            torch.mm(one, other, out=out)


def _matrix(address: int, shape: tuple[int, int], strides: tuple[int, int]) -> torch.Tensor:
    if not shape[0] or not shape[1]:
        return torch.empty(shape, dtype=torch.float32, device="cpu")
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    flat = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
    return flat.as_strided(shape, strides)


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
    return [*lines, f"    multiply({rows}, {inner}, {columns}, {matrices}, {into}, {kept});"]


def _begin(matrix: Matrix, pointers: Mapping[Memory, str]) -> str:
    name = pointers[matrix.memory]
    return name if type(matrix.offset) is int and not matrix.offset else f"({name} + {matrix.offset})"


def _is_nothing(step: Any) -> bool:
    return type(step) is int and step == 0
