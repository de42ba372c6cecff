"""Products of matrices in C: a call of the BLAS that PyTorch has loaded, with the arguments that ATen gives it.

A library is told where that is when it is loaded. Which of two matrices BLAS takes for the left one, and which lie
across, is decided as ATen does, from sizes and strides; what ATen would copy first, and what it computes with less
precision because the user wants that, it is asked to do itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

import torch

from bothways import torch_compat
from bothways.building.loading import Library
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

# Columns that lie side by side are rows to BLAS, so ATen gives it the right matrix first, unless the result is a column.
MULTIPLY = """\
static int lies(int64_t step, int64_t other, int64_t length, int64_t *distance) {
    *distance = other;
    return step == 1 && other >= (length > 1 ? length : 1);
}

static __attribute__((noinline)) void multiply(
    int64_t rows, int64_t inner, int64_t columns, const float *left, int64_t down, int64_t across,
    const float *right, int64_t right_down, int64_t right_across, float *into, float kept
) {
    if (!rows || !columns) return;
    const int swaps = columns != 1;
    const int64_t m = swaps ? columns : rows, n = swaps ? rows : columns;
    const int64_t a_step = swaps ? right_across : down, a_other = swaps ? right_down : across;
    const int64_t b_step = swaps ? across : right_down, b_other = swaps ? down : right_across;
    int64_t a_far, b_far, far = n == 1 ? m : columns;
    int a_turned = 0, b_turned = 0, fits = 1;
    if (!lies(a_step, a_other, m, &a_far)) fits &= a_turned = lies(a_other, a_step, inner, &a_far);
    if (!lies(b_step, b_other, inner, &b_far)) fits &= b_turned = lies(b_other, b_step, n, &b_far);
    if (a_turned ? m == 1 : inner == 1) a_far = a_turned ? inner : m;
    if (b_turned ? inner == 1 : n == 1) b_far = b_turned ? n : inner;
    const int64_t largest = __INT_MAX__;
    fits &= m <= largest && n <= largest && inner <= largest && a_far <= largest && b_far <= largest && far <= largest;
    if (!fits || !inner || products.precision(products.settings, 2, 3) > 1) {
        const int64_t numbers[] = {
            rows, inner, columns, (int64_t)left, down, across, (int64_t)right, right_down, right_across, (int64_t)into,
            kept != 0
        };
        products.aten(numbers);
        return;
    }
    const int sizes[] = {m, n, inner, a_far, b_far, far};
    const float whole = 1;
    products.sgemm(
        a_turned ? "T" : "N", b_turned ? "T" : "N", sizes, sizes + 1, sizes + 2, &whole, swaps ? right : left,
        sizes + 3, swaps ? left : right, sizes + 4, &kept, into, sizes + 5
    );
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
    undisturbed = torch_compat.no_modes(), torch_compat.without_function_modes(), torch_compat.below_autograd()
    with contextlib.ExitStack() as stack:
        for context in (*undisturbed, torch.autocast("cpu", enabled=False)):
            stack.enter_context(context)
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


def written(product: Product, pointers: dict[Any, str]) -> list[str]:
    """The lines of a product; ``pointers`` are the names of its memories."""
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


def _begin(matrix: Matrix, pointers: dict[Any, str]) -> str:
    name = pointers[matrix.memory]
    return name if type(matrix.offset) is int and not matrix.offset else f"({name} + {matrix.offset})"


def _is_nothing(step: Any) -> bool:
    return type(step) is int and step == 0
