"""Small libraries of C that call Python and PyTorch by addresses they are given: they need no header and no symbol.

Comes in: the text of a library, and the functions it calls. Goes out: that text with a variable for each of them, and
the loaded library with all of them filled.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.runtime.stamps import version_offset

# What libraries call: of Python,
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
    "PyLong_FromLongLong": ("PyObject *", "int64_t"),
    "PyLong_AsVoidPtr": ("void *", "PyObject *"),
    "PyFloat_AsDouble": ("double", "PyObject *"),
    "PyTuple_New": ("PyObject *", "int64_t"),
    "PyTuple_SetItem": ("int", "PyObject *, int64_t, PyObject *"),
    "PyTuple_GetItem": ("PyObject *", "PyObject *, int64_t"),
    "PyList_GetItem": ("PyObject *", "PyObject *, int64_t"),
    "PySequence_Tuple": ("PyObject *", "PyObject *"),
    "PySequence_Contains": ("int", "PyObject *, PyObject *"),
    "PyDict_GetItemWithError": ("PyObject *", "PyObject *, PyObject *"),
    "PyDict_Next": ("int", "PyObject *, int64_t *, PyObject **, PyObject **"),
    "PyDict_Size": ("int64_t", "PyObject *"),
    "PyObject_GetAttr": ("PyObject *", "PyObject *, PyObject *"),
    "PyObject_SetAttr": ("int", "PyObject *, PyObject *, PyObject *"),
    "PyObject_GetItem": ("PyObject *", "PyObject *, PyObject *"),
    "PyObject_GenericGetDict": ("PyObject *", "PyObject *, void *"),
    "PyObject_Size": ("int64_t", "PyObject *"),
    "PyObject_IsTrue": ("int", "PyObject *"),
    "PyObject_RichCompareBool": ("int", "PyObject *, PyObject *, int"),
    "PyObject_CallNoArgs": ("PyObject *", "PyObject *"),
    "PyObject_CallFunctionObjArgs": ("PyObject *", "PyObject *, ..."),
    "PyObject_Vectorcall": ("PyObject *", "PyObject *, PyObject *const *, uint64_t, PyObject *"),
    "PyObject_CallMethodObjArgs": ("PyObject *", "PyObject *, PyObject *, ..."),
    "PyFunction_GetCode": ("PyObject *", "PyObject *"),
    "PyFunction_GetDefaults": ("PyObject *", "PyObject *"),
    "PyFunction_GetKwDefaults": ("PyObject *", "PyObject *"),
    "PyCFunction_NewEx": ("PyObject *", "Method *, PyObject *, PyObject *"),
    "PyGC_Disable": ("int", "void"),
    "PyGC_Enable": ("int", "void"),
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
    "aoti_torch_empty_strided": (
        "int32_t", "int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **"
    ),
    "aoti_torch_delete_tensor_object": ("int32_t", "void *"),
}

DATA_PTR: str = sys.intern("data_ptr")
GRAD: str = sys.intern("grad")
TP_DESCR_GET = 54  # of typeslots.h, part of Python's stable interface

# Objects and numbers they know, by their names in C.
KNOWN: dict[str, tuple[str, Callable[[], int | None]]] = {
    "exception": ("PyObject *", lambda: id(Exception)),
    "dictionary": ("PyObject *", lambda: id(dict)),
    "list_class": ("PyObject *", lambda: id(list)),
    "tuple_class": ("PyObject *", lambda: id(tuple)),
    "whole_number": ("PyObject *", lambda: id(int)),
    "text": ("PyObject *", lambda: id(str)),
    "raw": ("PyObject *", lambda: id(bytes)),
    "none": ("PyObject *", lambda: id(None)),
    "no": ("PyObject *", lambda: id(False)),
    "yes": ("PyObject *", lambda: id(True)),
    "tensor_class": ("PyObject *", lambda: id(torch.Tensor)),
    "parameter_class": ("PyObject *", lambda: id(torch.nn.Parameter)),
    "tuple_items": ("int64_t", lambda: _tuple_items()),
    "data_ptr": ("PyObject *", lambda: id(DATA_PTR)),
    "descr_get": ("Getter", lambda: _slot(type(torch_compat.REQUIRES_GRAD), TP_DESCR_GET)),
    **{name: ("Question", functools.partial(torch_compat.question, name)) for name in torch_compat.QUESTIONS},
    "needs_gradient": ("Question", torch_compat.gradient_question),
    "gradient_of": ("Gradient", torch_compat.gradient_getter),
    "get_item_known_hash": ("KnownHash", lambda: _optional("_PyDict_GetItem_KnownHash")),
    "fraction": ("PyObject *", lambda: id(float)),
    "ordered_class": ("PyObject *", lambda: id(collections.OrderedDict)),
    "default_class": ("PyObject *", lambda: id(collections.defaultdict)),
    "function_class": ("PyObject *", lambda: id(types.FunctionType)),
    "cell_class": ("PyObject *", lambda: id(types.CellType)),
    "reference_class": ("PyObject *", lambda: id(weakref.ReferenceType)),
    "get_referent": ("Referent", lambda: _optional("PyWeakref_GetObject")),
    "referent_word": ("int64_t", lambda: _referent_word()),
    "dictionary_of": ("Dictionary", lambda: _optional("_PyObject_GetDictPtr")),
    "grad_name": ("PyObject *", lambda: id(GRAD)),
    "grad_getter": ("PyObject *", lambda: id(torch_compat.GRAD_GETTER)),
    "references_word": ("int64_t", lambda: torch.Tensor.__weakrefoffset__),
    "hooks_name": ("PyObject *", lambda: id(torch_compat.HOOKS)),
    "late_hooks_name": ("PyObject *", lambda: id(torch_compat.LATE_HOOKS)),
    "hooks_getter": ("PyObject *", lambda: id(torch_compat.HOOKS_GETTER)),
    "late_hooks_getter": ("PyObject *", lambda: id(torch_compat.LATE_HOOKS_GETTER)),
    "tensor_length": ("int64_t", torch_compat.tensor_length),
    "tensor_offset": ("int64_t", torch_compat.tensor_offset),
    **{f"{name}_word": ("int64_t", functools.partial(torch_compat.word_of, name)) for name in torch_compat.WORDS},
    "offset_word": ("int64_t", torch_compat.offset_word),
    "history_word": ("int64_t", torch_compat.history_word),
    "object_word": ("int64_t", torch_compat.object_word),
    "holders_word": ("int64_t", lambda: torch_compat.HOLDERS),
    "strided": ("int64_t", torch_compat.strided_code),
    "cpu_code": ("int64_t", lambda: torch_compat.device_code("cpu")),
    "wrapped_tensor": ("Wrapping", torch_compat.wrapping_function),
    "version_offset": ("int64_t", version_offset),
    "add_watcher": ("AddWatcher", lambda: _optional("PyDict_AddWatcher")),
    "watch": ("Watch", lambda: _optional("PyDict_Watch")),
}
DECLARATIONS = """\
typedef struct Object { int64_t references; struct Object *type; } PyObject;
typedef struct { const char *name; void *function; int flags; const char *text; } Method;
typedef PyObject *(*Getter)(PyObject *, PyObject *, PyObject *);
typedef _Bool (*Question)(const void *);
typedef void *const *(*Gradient)(const void *);
typedef PyObject *(*Referent)(PyObject *);
typedef PyObject *(*Wrapping)(const void *);
typedef PyObject **(*Dictionary)(PyObject *);
typedef PyObject *(*KnownHash)(PyObject *, PyObject *, int64_t);
typedef int (*Watch)(int, PyObject *);
typedef int (*AddWatcher)(int (*)(int, PyObject *, PyObject *, PyObject *));
enum { FASTCALL = 0x80, NO_ARGUMENTS = 0x4, ONE_ARGUMENT = 0x8 };
"""

_bound: list[ctypes.CDLL] = []  # never unloaded: the builtin functions that a library made refer to its memory


def text_with_names(functions: Mapping[str, tuple[str, str]], *texts: str) -> str:
    """The whole text of a library that calls ``functions``."""
    variables = [f"static {result} (*{name})({takes});" for name, (result, takes) in functions.items()]
    variables += [f"static {kind} {name};" for name, (kind, _) in KNOWN.items()]
    names = enumerate([*functions, *KNOWN])
    bind = [f"    {name} = (__typeof__({name}))given[{index}];" for index, name in names]
    return "\n".join([DECLARATIONS, *variables, "void bind(const int64_t *given) {", *bind, "}\n", *texts])


def usual_functions() -> list[Any]:
    """What ``PYTHON`` and ``TORCH`` name, in that order."""
    of_python = [getattr(ctypes.pythonapi, name) for name in PYTHON]
    return of_python + [torch_compat.c_function(name) for name in TORCH]


def makers(library: ctypes.CDLL, functions: Sequence[Any], *names: str) -> list[Any]:
    """The functions of a library that make builtin functions, of two objects each; it is given what it calls before."""
    _bound.append(library)
    # PyDLL: Python's lock is held, and exceptions are looked for.
    python = ctypes.PyDLL(library._name, handle=library._handle)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    addresses += [known() or 0 for _, known in KNOWN.values()]
    python.bind((ctypes.c_int64 * len(addresses))(*addresses))
    making = [getattr(python, name) for name in names]
    for make in making:
        make.argtypes, make.restype = [ctypes.py_object, ctypes.py_object], ctypes.py_object
    return making


def _optional(name: str) -> int:
    """Where a function of Python's is; 0 where this Python has none of that name."""
    function = getattr(ctypes.pythonapi, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _tuple_items() -> int | None:
    """How many bytes into a tuple its items are, one address after the other; None if unsure."""
    place = tuple.__basicsize__
    samples: list[tuple[Any, ...]] = [(object(), "a", 3.5), tuple(object() for _ in range(100))]
    for sample in samples:
        addresses = (ctypes.c_size_t * len(sample)).from_address(id(sample) + place)
        if list(addresses) != list(map(id, sample)):
            return None
    return place


def _referent_word() -> int:
    """How many bytes into a weak reference the address is of what it refers to, or that of None; 0 if unsure."""
    place = object.__basicsize__
    samples = [_Referent() for _ in range(3)]
    references = [weakref.ref(sample) for sample in samples]
    pairs = [(_word(reference, place), id(sample)) for reference, sample in zip(references, samples, strict=True)]
    del samples
    are_gone = all(_word(reference, place) == id(None) for reference in references)
    return place if are_gone and all(word == address for word, address in pairs) else 0


class _Referent:
    pass


def _word(owner: Any, place: int) -> int:
    return ctypes.c_size_t.from_address(id(owner) + place).value


def _slot(cls: type, number: int) -> int | None:
    ask = ctypes.pythonapi["PyType_GetSlot"]  # a new object, whose types are its own
    ask.argtypes, ask.restype = [ctypes.py_object, ctypes.c_int], ctypes.c_void_p
    address: int | None = ask(cls, number)
    return address
