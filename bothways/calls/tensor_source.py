"""The C that looks at many tensors at once: how often each was changed, and who holds their memory.

Each is a builtin of Python's that says False, and has changed nothing, where a tensor is not what it knows.
"""

from __future__ import annotations

TENSORS = """\
static uint32_t *version_of(PyObject *value) {
    if (value->type != tensor_class && value->type != parameter_class) return 0;
    char *counter = *(char **)(*(char **)((char *)value + tensor_offset) + counter_word);
    return counter ? (uint32_t *)(counter + version_word) : 0;
}

static int has_items(PyObject *items, int64_t most) {
    return is_row_of_items(items) && PyObject_Size(items) >= most;
}

static PyObject *answer_of(int holds) {
    PyObject *answer = holds ? yes : no;
    Py_IncRef(answer);
    return answer;
}

typedef struct { int64_t count, most; struct { int64_t place, version; } of[]; } Counted;

// Says of some items of a sequence how often they were changed.
static PyObject *set_versions(PyObject *self, PyObject *items) {
    const Counted *known = (const Counted *)PyBytes_AsString(self);
    if (!has_items(items, known->most)) return answer_of(0);
    for (int64_t i = 0; i < known->count; ++i) if (!version_of(member(items, known->of[i].place))) return answer_of(0);
    for (int64_t i = 0; i < known->count; ++i)
        __atomic_store_n(version_of(member(items, known->of[i].place)), (uint32_t)known->of[i].version, 5);
    return answer_of(1);
}

typedef struct { int64_t count, inputs, results; struct { int64_t input, result, changes; } of[]; } Updated;

// Where results are the very inputs that they belong to, counts the changes of these.
static PyObject *count_changes(PyObject *self, PyObject *const *arguments, int64_t count) {
    const Updated *known = (const Updated *)PyBytes_AsString(self);
    if (count != 2 || !has_items(arguments[0], known->inputs) || !has_items(arguments[1], known->results))
        return answer_of(0);
    for (int64_t i = 0; i < known->count; ++i) {
        PyObject *input = member(arguments[0], known->of[i].input);
        if (input != member(arguments[1], known->of[i].result) || !version_of(input)) return answer_of(0);
    }
    for (int64_t i = 0; i < known->count; ++i) {
        uint32_t *version = version_of(member(arguments[0], known->of[i].input));
        __atomic_fetch_add(version, (uint32_t)known->of[i].changes, 5);
    }
    return answer_of(1);
}

// Whether storages, by their addresses, have as many holders as they had.
static PyObject *are_held_as(PyObject *self, PyObject *nothing) {
    const int64_t *known = (const int64_t *)PyBytes_AsString(self);
    int64_t same = 1;
    for (int64_t i = 0; same && i < known[0]; ++i)
        same = *(int64_t *)(known[2 * i + 1] + holders_word) == known[2 * i + 2];
    return answer_of((int)same);
}

static Method setting = {"set_versions", set_versions, ONE_ARGUMENT, 0};
static Method counting = {"count_changes", count_changes, FASTCALL, 0};
static Method holding = {"are_held_as", are_held_as, NO_ARGUMENTS, 0};

PyObject *make_versions(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&setting, known, kept); }
PyObject *make_counting(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&counting, known, kept); }
PyObject *make_holding(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&holding, known, kept); }
"""
