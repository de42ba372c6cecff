"""The C that launches kernels on a GPU: all those of one routine in one call of a builtin of Python's.

What is launched is a table of numbers: for each kernel its handle, its blocks and threads, and where each of its
arguments is among what the routine is given. Arguments lie side by side, so that a kernel may as well take them as one
table by value.
"""

from __future__ import annotations

# Functions of the driver and of PyTorch that it is given by address besides those of the entries.
DRIVER: dict[str, tuple[str, str]] = {
    "cuLaunchKernel": (
        "int",
        "void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **",
    ),
    "cuCtxGetCurrent": ("int", "void **"),
    "cuCtxPushCurrent_v2": ("int", "void *"),
    "cuCtxPopCurrent_v2": ("int", "void **"),
}
STREAM: dict[str, tuple[str, str]] = {"aoti_torch_get_current_cuda_stream": ("int32_t", "int32_t, void **")}

LAUNCH = """\
typedef struct { int64_t count, launches, device; void *context; int64_t most, length, words[]; } Plan;

static int launch_all(const Plan *plan, const Given *given, void *stream) {
    const int64_t *word = plan->words;
    Given values[plan->most];
    void *places[plan->most];
    for (int64_t number = 0; number < plan->launches; ++number, word += 5 + 3 * word[4]) {
        for (int64_t index = 0; index < word[4]; ++index) {
            const int64_t *argument = word + 5 + 3 * index;
            values[index] = given[argument[0]];
            if (argument[1] == 1) values[index].number += argument[2];
            if (argument[1] == 2) values[index].number += given[argument[2]].number;
            if (argument[1] == 3) values[index].number = argument[2];
            places[index] = values + index;
        }
        const int64_t most = 0x7fffffff, blocks = word[1] < most ? word[1] : most;
        int code = cuLaunchKernel((void *)word[0], blocks, 1, 1, word[2], 1, 1, word[3], stream, places, 0);
        if (code) return code;
    }
    return 0;
}

static PyObject *launch(PyObject *self, PyObject *const *arguments, int64_t count) {
    const Plan *plan = (const Plan *)PyBytes_AsString(PyTuple_GetItem(self, 0));
    const char *kinds = (const char *)(plan->words + plan->length);
    Given few[64], *given = few;
    int64_t taken = 0;
    int code = 0;
    if (count != plan->count) { PyErr_BadArgument(); return 0; }
    if (count > 64 && !(given = PyMem_Malloc(count * sizeof(Given)))) return PyErr_NoMemory();
    while (taken < count && take(arguments[taken], kinds[taken], given + taken)) ++taken;
    if (taken == count) {
        void *stream = 0, *current = 0;
        code = aoti_torch_get_current_cuda_stream((int32_t)plan->device, &stream);
        if (!code) {
            void *state = PyEval_SaveThread();
            code = cuCtxGetCurrent(&current);
            const int elsewhere = !code && current != plan->context;
            if (elsewhere) code = cuCtxPushCurrent_v2(plan->context);
            if (!code) {
                code = launch_all(plan, given, stream);
                if (elsewhere) cuCtxPopCurrent_v2(&current);
            }
            PyEval_RestoreThread(state);
        }
    }
    if (given != few) PyMem_Free(given);
    if (taken != count) return 0;
    if (!code) { Py_IncRef(none); return none; }
    PyObject *number = PyLong_FromLongLong(code), *result = 0;
    if (number) result = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 1), number, (PyObject *)0);
    if (number) Py_DecRef(number);
    return result;
}

static Method launching = {"launch", launch, FASTCALL, 0};

PyObject *make_launch(PyObject *plan, PyObject *kept) { return PyCFunction_NewEx(&launching, plan, kept); }
"""
