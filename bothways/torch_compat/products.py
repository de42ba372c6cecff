"""The function that PyTorch itself multiplies matrices of floats with, for those who have no tensors but memory.

PyTorch exports the BLAS that it was linked with. It calls it for a product in single precision unless it was told to
multiply with less precision, which is asked here as PyTorch asks it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import _C

from bothways.torch_compat.functions import below_autograd, no_modes
from bothways.torch_compat.names import without_function_modes
from bothways.torch_compat.tensor_memory import c_function

__all__ = ["ProductFunctions", "is_cosh_infinite_early", "product_functions", "undisturbed"]

_CONTEXT = "_ZN2at13globalContextEv"
_PRECISION = "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE"
_OF_ATEN = (
    "aoti_torch_create_tensor_from_blob", "aoti_torch_cpu_mm_out", "aoti_torch_cpu_addmm_out",
    "aoti_torch_delete_tensor_object",
)  # fmt: skip
# ``Float32Backend::MKLDNN``, ``Float32Op::MATMUL``, and what ``Float32Precision`` counts.
MKLDNN, MATMUL = 2, 3
_PRECISIONS = ("none", "ieee", "tf32", "bf16")


@dataclass(frozen=True)
class ProductFunctions:
    """Addresses: of ``sgemm_``, of PyTorch's settings, of the method of these that gives a precision, and of the C of
    ATen's own products, of matrices at addresses, which are dropped at the end. ``adds_in_order`` is 1 where the first
    adds up few columns in order."""

    sgemm: int
    settings: int
    precision: int
    matrix: int
    mm: int
    addmm: int
    drop: int
    adds_in_order: int


@functools.cache
def product_functions() -> ProductFunctions | None:
    """None where this build has none of them, or they do something else than PyTorch does."""
    multiply, context, precision = c_function("sgemm_"), c_function(_CONTEXT), c_function(_PRECISION)
    if platform.machine() not in ("x86_64", "AMD64") or multiply is None or context is None or precision is None:
        return None  # on other machines PyTorch asks other libraries first
    context.restype, precision.restype = ctypes.c_void_p, ctypes.c_int
    precision.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    settings = context()
    with undisturbed():
        if not _tells_precision(precision, settings) or not _multiplies(multiply):
            return None
        in_order = _adds_in_order()
    others = [c_function(name) for name in _OF_ATEN]
    if None in others:
        return None
    known = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in (multiply, precision, *others))
    address, place, matrix, mm, addmm, drop = known
    return ProductFunctions(address, settings, place, matrix, mm, addmm, drop, int(in_order))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Operations inside of it run as they are, whatever modes the caller is in."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_modes())
        stack.enter_context(without_function_modes())
        stack.enter_context(below_autograd())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        yield


@functools.cache
def is_cosh_infinite_early() -> bool:
    """Whether ``cosh`` and ``sinh`` of many floats are infinite where the exponential is; they need not be. Since
    PyTorch 2.15 they are not."""
    with undisturbed():
        return bool(torch.full((64,), 89.0, dtype=torch.float32, device="cpu").cosh().isinf().any())


def _tells_precision(precision: Any, settings: int) -> bool:
    ask = getattr(_C, "_get_fp32_precision_getter", None)
    now = precision(settings, MKLDNN, MATMUL)
    return ask is not None and 0 <= now < len(_PRECISIONS) and _PRECISIONS[now] == ask("mkldnn", "matmul")


def _multiplies(multiply: Any) -> bool:
    """Whether products of some matrices have the bits that PyTorch gives them, whichever way these lie."""
    if _C._get_fp32_precision_getter("mkldnn", "matmul") in ("tf32", "bf16"):
        return False  # PyTorch does something else now
    sizes, ways = ((5, 7, 9), (32, 48, 16)), (False, True)
    return all(_agrees(multiply, *one) for one in itertools.product(sizes, ways, ways))


def _adds_in_order() -> bool:
    """Whether products of few columns, the right matrix row by row, have the bits of sums that go on product after
    product, however long they are, and each product rounded by itself."""
    rows, inner, few = 35, 30, (2, 3, 4, 8)
    left, right = _filled(rows, inner, False), _filled(inner, few[-1], False)
    sums = torch.zeros(rows, few[-1], dtype=torch.float32, device="cpu")
    for at in range(inner):
        sums = sums + left[:, at : at + 1] * right[at]
    for one, columns in itertools.product((left, left.t().contiguous().t()), few):
        if not torch.equal(one @ right[:, :columns].contiguous(), sums[:, :columns]):
            return False
    # Sums that are put together from several lose other ones beside a large number than those that go on.
    left, right = (torch.ones(size, dtype=torch.float32, device="cpu") for size in ((9, 3000), (3000, few[-1])))
    left[:, 0], left[:, 1500] = 2.0**30, -(2.0**30)
    ways = itertools.product((left, left.t().contiguous().t()), few)
    return all(bool((one @ right[:, :columns].contiguous() == 1499).all()) for one, columns in ways)


def _agrees(multiply: Any, sizes: tuple[int, int, int], left_turned: bool, right_turned: bool) -> bool:
    rows, inner, columns = sizes
    left, right = _filled(rows, inner, left_turned), _filled(inner, columns, right_turned)
    out = torch.empty(rows, columns, dtype=torch.float32, device="cpu")
    # In the eyes of BLAS, where columns lie side by side, it is the other way round: right times left.
    letters = [ctypes.c_char(b"T" if turned else b"N") for turned in (right_turned, left_turned)]
    ends = inner if right_turned else columns, rows if left_turned else inner, columns
    m, n, k, lda, ldb, ldc = (ctypes.c_int(number) for number in (columns, rows, inner, *ends))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    a, b, c = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (right, left, out))
    refer = ctypes.byref
    multiply(
        refer(letters[0]), refer(letters[1]), refer(m), refer(n), refer(k), refer(one), a, refer(lda), b, refer(ldb),
        refer(zero), c, refer(ldc),
    )  # fmt: skip
    return torch.equal(out, left @ right)


def _filled(rows: int, columns: int, turned: bool) -> torch.Tensor:
    """A matrix of numbers whose products are rounded, drawn without the generator that belongs to the user."""
    count = torch.arange(rows * columns, dtype=torch.float32, device="cpu")
    values = (count * 0.7310585).sin()
    return values.view(columns, rows).t() if turned else values.view(rows, columns)
