"""The C that enters kernels: a builtin of Python's that takes tensors and numbers, and hands over memory and numbers.

Python's lock is released while kernels run.
"""

from __future__ import annotations

# What an argument is: the memory of a tensor, an integer, a float; and how ``struct`` spells it.
POINTER, NUMBER, FRACTION = "p", "n", "f"
SPELLING = {POINTER: "Q", NUMBER: "q", FRACTION: "d"}

ENTER = """\
typedef struct { void (*function)(const Given *); int64_t count; char kinds[]; } Entry;

static int take(PyObject *value, char kind, Given *given) {
    if (kind == 'n') {
        given->number = PyLong_AsLongLong(value);
        return given->number != -1 || !PyErr_Occurred();
    }
    if (kind == 'f') {
        given->fraction = PyFloat_AsDouble(value);
        return given->fraction != -1 || !PyErr_Occurred();
    }
    if (value->type == tensor_class || value->type == parameter_class)
        if (!aoti_torch_get_data_ptr((char *)value + tensor_offset, &given->pointer)) return 1;
    PyObject *address = PyObject_CallMethodObjArgs(value, data_ptr, (PyObject *)0);
    if (!address) return 0;
    given->pointer = PyLong_AsVoidPtr(address);
    Py_DecRef(address);
    return given->pointer || !PyErr_Occurred();
}

static PyObject *enter(PyObject *self, PyObject *const *arguments, int64_t count) {
    const Entry *entry = (const Entry *)PyBytes_AsString(self);
    Given few[64], *given = few;
    int64_t taken = 0;
    if (count != entry->count) { PyErr_BadArgument(); return 0; }
    if (count > 64 && !(given = PyMem_Malloc(count * sizeof(Given)))) return PyErr_NoMemory();
    while (taken < count && take(arguments[taken], entry->kinds[taken], given + taken)) ++taken;
    if (taken == count) {
        void *state = PyEval_SaveThread();
        entry->function(given);
        PyEval_RestoreThread(state);
        Py_IncRef(none);
    }
    if (given != few) PyMem_Free(given);
    return taken == count ? none : 0;
}

static Method entering = {"enter", enter, FASTCALL, 0};

PyObject *make_entry(PyObject *entry, PyObject *kept) { return PyCFunction_NewEx(&entering, entry, kept); }
"""
