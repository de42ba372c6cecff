"""The small C library around calls of compiled functions: it checks guards, and it enters kernels.

Built once on a machine, loaded once in a process. It reads Python objects and tensors where they lie, so it is used
only after it gave the right answers about a dozen tensors here; without it guards are Python, and kernels are entered
through ctypes.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.building.build import TRIES, CSource, library_of
from bothways.calls.entry_source import ENTER, POINTER, SPELLING
from bothways.calls.guard_rows import Row, facts_of, packed
from bothways.calls.guard_source import guard_text
from bothways.errors import BothwaysError, NoCompiler
from bothways.runtime.stamps import version_offset

# What the library calls, given to it as addresses, so that it needs no header and no symbol: of Python,
PYTHON: dict[str, tuple[str, str]] = {
    "Py_IncRef": ("void", "PyObject *"),
    "Py_DecRef": ("void", "PyObject *"),
    "PyErr_Occurred": ("PyObject *", "void"),
    "PyErr_ExceptionMatches": ("int", "PyObject *"),
    "PyErr_Clear": ("void", "void"),
    "PyErr_NoMemory": ("PyObject *", "void"),
    "PyErr_BadArgument": ("int", "void"),
    "PyEval_SaveThread": ("void *", "void"),
    "PyEval_RestoreThread": ("void", "void *"),
    "PyMem_Malloc": ("void *", "uint64_t"),
    "PyMem_Free": ("void", "void *"),
    "PyBytes_AsString": ("const char *", "PyObject *"),
    "PyLong_AsLongLong": ("int64_t", "PyObject *"),
    "PyLong_AsVoidPtr": ("void *", "PyObject *"),
    "PyFloat_AsDouble": ("double", "PyObject *"),
    "PyTuple_New": ("PyObject *", "int64_t"),
    "PyTuple_SetItem": ("int", "PyObject *, int64_t, PyObject *"),
    "PyTuple_GetItem": ("PyObject *", "PyObject *, int64_t"),
    "PySequence_Tuple": ("PyObject *", "PyObject *"),
    "PySequence_Contains": ("int", "PyObject *, PyObject *"),
    "PyDict_GetItemWithError": ("PyObject *", "PyObject *, PyObject *"),
    "PyDict_Next": ("int", "PyObject *, int64_t *, PyObject **, PyObject **"),
    "PyDict_Size": ("int64_t", "PyObject *"),
    "PyObject_GetAttr": ("PyObject *", "PyObject *, PyObject *"),
    "PyObject_GetItem": ("PyObject *", "PyObject *, PyObject *"),
    "PyObject_GenericGetDict": ("PyObject *", "PyObject *, void *"),
    "PyObject_Size": ("int64_t", "PyObject *"),
    "PyObject_IsTrue": ("int", "PyObject *"),
    "PyObject_RichCompareBool": ("int", "PyObject *, PyObject *, int"),
    "PyObject_CallNoArgs": ("PyObject *", "PyObject *"),
    "PyObject_CallFunctionObjArgs": ("PyObject *", "PyObject *, ..."),
    "PyObject_CallMethodObjArgs": ("PyObject *", "PyObject *, PyObject *, ..."),
    "PyFunction_GetCode": ("PyObject *", "PyObject *"),
    "PyFunction_GetDefaults": ("PyObject *", "PyObject *"),
    "PyFunction_GetKwDefaults": ("PyObject *", "PyObject *"),
    "PyCFunction_NewEx": ("PyObject *", "Method *, PyObject *, PyObject *"),
    "_PyType_Lookup": ("PyObject *", "PyObject *, PyObject *"),
}
# and of PyTorch's C interface for programs that were compiled ahead of time.
TORCH: dict[str, tuple[str, str]] = {
    "aoti_torch_get_dim": ("int32_t", "void *, int64_t *"),
    "aoti_torch_get_sizes": ("int32_t", "void *, int64_t **"),
    "aoti_torch_get_strides": ("int32_t", "void *, int64_t **"),
    "aoti_torch_get_dtype": ("int32_t", "void *, int32_t *"),
    "aoti_torch_get_layout": ("int32_t", "void *, int32_t *"),
    "aoti_torch_get_device_type": ("int32_t", "void *, int32_t *"),
    "aoti_torch_get_device_index": ("int32_t", "void *, int32_t *"),
    "aoti_torch_dtype_element_size": ("uint64_t", "int32_t"),
    "aoti_torch_get_storage_offset": ("int32_t", "void *, int64_t *"),
    "aoti_torch_get_storage_size": ("int32_t", "void *, int64_t *"),
    "aoti_torch_get_data_ptr": ("int32_t", "void *, void **"),
    "aoti_torch_is_contiguous": ("int32_t", "void *, _Bool *"),
}

DATA_PTR: str = sys.intern("data_ptr")
MOST_PAIRS = 64  # of tensors that are compared one by one; of more, all must have memories of their own
TP_DESCR_GET = 54  # of typeslots.h, part of Python's stable interface

# Objects and numbers it knows, by their names in C.
KNOWN: dict[str, tuple[str, Callable[[], int | None]]] = {
    "exception": ("PyObject *", lambda: id(Exception)),
    "dictionary": ("PyObject *", lambda: id(dict)),
    "whole_number": ("PyObject *", lambda: id(int)),
    "text": ("PyObject *", lambda: id(str)),
    "raw": ("PyObject *", lambda: id(bytes)),
    "none": ("PyObject *", lambda: id(None)),
    "no": ("PyObject *", lambda: id(False)),
    "yes": ("PyObject *", lambda: id(True)),
    "tensor_class": ("PyObject *", lambda: id(torch.Tensor)),
    "parameter_class": ("PyObject *", lambda: id(torch.nn.Parameter)),
    "data_ptr": ("PyObject *", lambda: id(DATA_PTR)),
    "descr_get": ("Getter", lambda: _slot(type(torch_compat.REQUIRES_GRAD), TP_DESCR_GET)),
    **{name: ("Question", functools.partial(torch_compat.question, name)) for name in torch_compat.QUESTIONS},
    "tensor_offset": ("int64_t", torch_compat.tensor_offset),
    "strided": ("int64_t", torch_compat.strided_code),
    "version_offset": ("int64_t", version_offset),
}
DECLARATIONS = """\
typedef struct Object { int64_t references; struct Object *type; } PyObject;
typedef struct { const char *name; void *function; int flags; const char *text; } Method;
typedef PyObject *(*Getter)(PyObject *, PyObject *, PyObject *);
typedef _Bool (*Question)(const void *);
enum { FASTCALL = 0x80 };
"""


def source_text() -> str:
    """The whole file."""
    functions = {**PYTHON, **TORCH}
    variables = [f"static {result} (*{name})({takes});" for name, (result, takes) in functions.items()]
    variables += [f"static {kind} {name};" for name, (kind, _) in KNOWN.items()]
    names = enumerate([*functions, *KNOWN])
    bind = [f"    {name} = (__typeof__({name}))given[{index}];" for index, name in names]
    bound = ["void bind(const int64_t *given) {", *bind, "}\n"]
    return "\n".join([DECLARATIONS, *variables, *bound, guard_text(), ENTER])


_bound: list[ctypes.CDLL] = []  # never unloaded: the builtin functions that a library made refer to its memory


class CallLibrary:
    """The loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        _bound.append(library)
        # PyDLL: Python's lock is held, and exceptions are looked for.
        python = ctypes.PyDLL(library._name, handle=library._handle)
        addresses = _given()
        python.bind((ctypes.c_int64 * len(addresses))(*addresses))
        self._make_check: Any = python.make_check
        self._make_entry: Any = python.make_entry
        for make in (self._make_check, self._make_entry):
            make.argtypes, make.restype = [ctypes.py_object, ctypes.py_object], ctypes.py_object

    def check(
        self, rows: Sequence[Row], slots: int, arguments: int, results: Sequence[int] = ()
    ) -> Callable[..., Any]:
        """A builtin function of ``arguments`` objects that tells whether all rows hold.

        It returns False, or what is in the slots ``results`` (True when there are none); it never raises for what a
        row does not find.
        """
        check: Callable[..., Any] = self._make_check(*packed(rows, slots, arguments, results))
        return check

    def like(self, tensor: torch.Tensor) -> Callable[..., Any]:
        """Whether something is a tensor like this one, in everything that can be asked."""
        grad = Row("GRADIENT", flag=tensor.requires_grad, object="requires_grad", other=torch_compat.REQUIRES_GRAD)
        return self.check([Row("TYPE", object=type(tensor)), Row("TENSOR", data=facts_of(tensor)), grad], 1, 1)

    def apart(self, count: int, changed: Sequence[int]) -> Callable[..., Any]:
        """A builtin function that tells, of so many tensors, whether those that are changed have memories of their own;
        False if it is not sure."""
        pairs = {(min(one, other), max(one, other)) for one in changed for other in range(count) if one != other}
        sets = sorted(pairs) if 0 < len(pairs) <= MOST_PAIRS else [tuple(range(count))]
        return self.check([Row("APART", data=[len(places), *places]) for places in sets], count, count)

    def entry(self, address: int, kinds: str, kept: Any) -> Callable[..., None]:
        """A builtin function that calls a C function with arguments of these kinds."""
        entry: Callable[..., None] = self._make_entry(struct.pack("Qq", address, len(kinds)) + kinds.encode(), kept)
        return entry


def entry(address: int, kinds: str, kept: Any) -> Callable[..., None]:
    """A function of tensors and numbers that calls a C function with what they hold, as an array of ``Given``.

    It holds ``kept``, with which the C function would go.
    """
    library = call_library()
    if library is not None:
        return library.entry(address, kinds, kept)
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(address)
    spelling = "".join(SPELLING[kind] for kind in kinds)

    def enter(*values: Any, kept: Any = kept) -> None:
        arguments = (value.data_ptr() if kind == POINTER else value for value, kind in zip(values, kinds, strict=True))
        function(struct.pack(spelling, *arguments))

    return enter


def apart(count: int, changed: Sequence[int]) -> Callable[..., Any] | None:
    """What tells, of so many tensors, whether those that are changed have memories of their own, where there is
    something that does."""
    library = call_library()
    return None if library is None else library.apart(count, changed)


_found: list[CallLibrary | None] = []  # what was found, as soon as that is certain
_failures: list[str] = []


def call_library() -> CallLibrary | None:
    """The library, built unless it is in the cache; None where there can be none.

    A compiler that does not work is asked again when the next function is captured, a few times.
    """
    if not _found:
        try:
            _found.append(_built_library() if _layouts_are_known() else None)
        except NoCompiler as error:
            _failures.append(error.problem)
            if len(_failures) < TRIES:
                return None
            _found.append(None)
    return _found[0]


def _built_library() -> CallLibrary | None:
    try:
        library = CallLibrary(library_of(CSource((), (source_text(),))))
        return library if _answers_rightly(library) else None
    except NoCompiler:
        raise
    except (BothwaysError, OSError, RuntimeError):  # it does not compile, or there are no such tensors here
        return None


def _layouts_are_known() -> bool:
    """Whether objects begin with a count and their type, and every function that is called is there."""
    if "t" in sys.abiflags or sys.implementation.name != "cpython":
        return False
    word = ctypes.sizeof(ctypes.c_void_p)
    if word != 8 or object.__basicsize__ != 2 * word:
        return False
    if any(ctypes.c_size_t.from_address(id(sample) + word).value != id(type(sample)) for sample in (3, "a", object)):
        return False
    if not all(hasattr(ctypes.pythonapi, name) for name in ("PyType_GetSlot", *PYTHON)):
        return False
    known = [*map(torch_compat.c_function, TORCH), *(ask() for _, ask in KNOWN.values())]
    return None not in known and torch_compat.device_code("cpu") is not None


def _given() -> list[int]:
    """The addresses and numbers that the library is given, in the order it expects them."""
    functions = [getattr(ctypes.pythonapi, name) for name in PYTHON]
    functions += [torch_compat.c_function(name) for name in TORCH]
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    return [*addresses, *(known() or 0 for _, known in KNOWN.values())]


def _slot(cls: type, number: int) -> int | None:
    ask = ctypes.pythonapi["PyType_GetSlot"]  # a new object, whose types are its own
    ask.argtypes, ask.restype = [ctypes.py_object, ctypes.c_int], ctypes.c_void_p
    address: int | None = ask(cls, number)
    return address


# What is asked before the library is trusted.


def _samples() -> list[torch.Tensor]:
    zeros = functools.partial(torch.zeros, device="cpu")
    return [
        *(zeros(2, 3, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.int64, torch.bool)),
        zeros(3, 2, 4).transpose(0, 2),
        zeros(4, 4)[::2, 1:],
        zeros(1, 5).expand(3, 5),
        zeros(0, 3),
        zeros(()),
        torch.zeros(2, 3, device="meta"),
        torch.nn.Parameter(zeros(2, 3)),
        zeros(2, 3).requires_grad_(),
        zeros(2, 3, dtype=torch.complex64),
        *torch_compat.put_off(zeros(2, 3, dtype=torch.complex64)),
    ]


def _answers_rightly(library: CallLibrary) -> bool:
    """Whether each of some tensors is like itself, and like no other, in exactly what differs."""
    samples = _samples()
    checks = [(one, library.like(one)) for one in samples]
    if not all(is_like(other) is _alike(one, other) for one, is_like in checks for other in samples):
        return False
    one, other, third = samples[0], samples[1], torch.zeros(8, dtype=torch.float64, device="cpu")
    are_apart = library.apart(3, range(3))
    return are_apart(one, other, third[2:]) and not any(are_apart(one, third[:2], end) for end in (third[6:], third))


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = (type(one), one.dtype, one.shape, one.stride(), one.device, one.requires_grad) == (
        type(other), other.dtype, other.shape, other.stride(), other.device, other.requires_grad,
    )  # fmt: skip
    # Memory is asked for where there is some.
    return same and (torch_compat.has_plain_memory(other) or not torch_compat.has_plain_memory(one))
