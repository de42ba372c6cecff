"""Tensors without content for kernels to write to, several by one call of C: PyTorch's own function for one takes three
times as long, most of it to read what Python passes.

Comes in: what each tensor is, as a row of text, a dtype, sizes and, after a slash, strides: ``float32 _0 64 / 64 1``,
where ``_0`` is the first number that the call passes. Goes out: a function of those numbers that gives the tensor, or
a tuple of several.
"""

from __future__ import annotations

import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from bothways import torch_compat

CPU = torch.device("cpu")
MOST = 64  # dimensions, which PyTorch's tensors have as well, and numbers
LARGE = 1 << 24  # bytes, from which PyTorch's own function makes tensors: the error is its own where there is no memory


class NewTensor(NamedTuple):
    """One tensor; a number that is passed stands as its place, a text."""

    dtype: torch.dtype
    sizes: tuple[int | str, ...]
    strides: tuple[int | str, ...] | None  # None of what is contiguous


def row_of(text: str) -> NewTensor:
    """A row of text, read; ValueError where it is none."""
    kind, *words = text.split()
    dtype = getattr(torch, kind, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype: {kind}")
    sizes, strides = words, None
    if "/" in words:
        cut = words.index("/")
        sizes, strides = words[:cut], tuple(map(_number, words[cut + 1 :]))
    if strides is not None and len(strides) != len(sizes):
        raise ValueError(f"as many strides as sizes: {text}")
    return NewTensor(dtype, tuple(map(_number, sizes)), strides)


def _number(word: str) -> int | str:
    return str(int(word[1:])) if word.startswith("_") else int(word)


def numbers_of(rows: Sequence[NewTensor]) -> int:
    """How many numbers a call passes."""
    words = [word for row in rows for word in (*row.sizes, *(row.strides or ())) if isinstance(word, str)]
    return 1 + max(map(int, words), default=-1)


def made_by_python(rows: Sequence[NewTensor]) -> Callable[..., Any]:
    """The function, in Python."""

    def make(*numbers: int) -> Any:
        tensors = []
        for row in rows:
            sizes = [word if isinstance(word, int) else numbers[int(word)] for word in row.sizes]
            if row.strides is None:
                tensors.append(torch.empty(sizes, dtype=row.dtype, device=CPU))
                continue
            strides = [word if isinstance(word, int) else numbers[int(word)] for word in row.strides]
            tensors.append(torch.empty_strided(sizes, strides, dtype=row.dtype, device=CPU))
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    return make


def packed_rows(rows: Sequence[NewTensor], in_python: Callable[..., Any]) -> bytes | None:
    """The rows as C reads them; None where PyTorch has no number for a dtype, or there are more than C has room for."""
    numbers = [len(rows), numbers_of(rows), id(in_python)]
    if numbers[1] > MOST or any(len(row.sizes) > MOST for row in rows):
        return None
    for row in rows:
        code = torch_compat.dtype_code(row.dtype)
        if code is None:
            return None
        numbers += [code, row.dtype.itemsize, len(row.sizes), row.strides is not None]
        for word in (*row.sizes, *(row.strides or ())):
            numbers += [isinstance(word, str), int(word)]
    return struct.pack(f"{len(numbers)}q", *numbers)


def makes_rightly(making: Callable[[Sequence[str]], Callable[..., Any]]) -> bool:
    """Whether tensors made by C are what PyTorch's own functions make, and go when nothing holds them."""
    texts = ["float32 _0 3", "int64", "bool 0 _1", "bfloat16 2 _0 / 1 2", "complex64 3 2 _1 / _2 3 9", "float64 _2 _2"]
    rows, numbers = [row_of(text) for text in texts], (2, 5, 1000)
    for inference in (False, True):
        with torch.inference_mode(inference):
            tensors, plain = making(texts)(*numbers), made_by_python(rows)(*numbers)
            alone = making(texts[:1])(2)
            if not all(map(_is_like, (*tensors, alone), (*plain, plain[0]))):
                return False
    gone = weakref.ref(tensors[0])
    is_held_once = sys.getrefcount(tensors[0]) == sys.getrefcount(plain[0])
    del tensors
    return is_held_once and gone() is None


def _is_like(tensor: Any, plain: torch.Tensor) -> bool:
    """Whether one is a tensor like the other, to which numbers can be written."""
    if type(tensor) is not torch.Tensor or tensor.data_ptr() % 64:
        return False
    facts = [
        (one.dtype, one.shape, one.stride(), one.device, one.layout, one.requires_grad, one.is_inference(),
         one.untyped_storage().nbytes(), one._version if not one.is_inference() else 0, one.grad_fn)
        for one in (tensor, plain)
    ]  # fmt: skip
    return facts[0] == facts[1] and bool((tensor.fill_(1) == 1).all())


MAKING = f"""\
enum {{ MOST = {MOST}, LARGE = {LARGE} }};

// One tensor, of the numbers that are passed; 0 where PyTorch's own function has to be asked.
static PyObject *made_tensor(const int64_t **words, const int64_t *passed) {{
    const int64_t *row = *words, dtype = row[0], itemsize = row[1], dims = row[2], is_laid_out = row[3];
    int64_t sizes[MOST], strides[MOST], last = 0, elements = 1;
    row += 4;
    for (int64_t dim = 0; dim < dims; ++dim, row += 2) sizes[dim] = row[0] ? passed[row[1]] : row[1];
    for (int64_t dim = 0; is_laid_out && dim < dims; ++dim, row += 2) strides[dim] = row[0] ? passed[row[1]] : row[1];
    *words = row;
    for (int64_t dim = dims, stride = 1; dim--;) {{
        if (!is_laid_out) strides[dim] = stride;
        if (sizes[dim] < 0 || sizes[dim] > LARGE || strides[dim] < 0 || strides[dim] > LARGE) return 0;
        stride *= sizes[dim] ? sizes[dim] : 1;
        elements *= sizes[dim] != 0;
        last += (sizes[dim] - 1) * strides[dim];
        if (stride > LARGE || last > LARGE) return 0;
    }}
    if (elements && (last + 1) * itemsize > LARGE) return 0;
    void *made = 0;
    if (aoti_torch_empty_strided(dims, sizes, strides, dtype, cpu_code, 0, &made)) return 0;
    PyObject *tensor = wrapped_tensor(made);
    aoti_torch_delete_tensor_object(made);
    return tensor;
}}

static PyObject *make_them(PyObject *self, PyObject *const *arguments, int64_t count) {{
    const int64_t *words = (const int64_t *)PyBytes_AsString(self);
    const int64_t tensors = words[0];
    PyObject *otherwise = (PyObject *)words[2];
    int64_t passed[MOST];
    if (count != words[1] || count > MOST) {{ PyErr_BadArgument(); return 0; }}
    for (int64_t each = 0; each < count; ++each) {{
        passed[each] = PyLong_AsLongLong(arguments[each]);
        if (passed[each] == -1 && PyErr_Occurred()) return 0;
    }}
    words += 3;
    PyObject *made = tensors == 1 ? 0 : PyTuple_New(tensors);
    if (tensors != 1 && !made) return 0;
    for (int64_t each = 0; each < tensors; ++each) {{
        PyObject *tensor = made_tensor(&words, passed);
        if (!tensor) {{
            if (made) Py_DecRef(made);
            return PyErr_Occurred() ? 0 : PyObject_Vectorcall(otherwise, arguments, count, 0);
        }}
        if (tensors == 1) return tensor;
        PyTuple_SetItem(made, each, tensor);
    }}
    return made;
}}

static Method making = {{"make", make_them, FASTCALL, 0}};

PyObject *make_making(PyObject *known, PyObject *otherwise) {{ return PyCFunction_NewEx(&making, known, otherwise); }}
"""
