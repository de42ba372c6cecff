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

enum { RELAXED = 0 };
typedef struct { int64_t count, most; struct { int64_t place, version; } of[]; } Counted;

// Says of some items of a sequence how often they were changed.
static PyObject *set_versions(PyObject *self, PyObject *items) {
    const Counted *known = (const Counted *)PyBytes_AsString(self);
    if (!has_items(items, known->most)) return answer_of(0);
    for (int64_t i = 0; i < known->count; ++i) if (!version_of(member(items, known->of[i].place))) return answer_of(0);
    for (int64_t i = 0; i < known->count; ++i)
        __atomic_store_n(version_of(member(items, known->of[i].place)), (uint32_t)known->of[i].version, RELAXED);
    return answer_of(1);
}

typedef struct { int64_t count, inputs, results; struct { int64_t input, result, changes; } of[]; } Updated;

// Where results are the very inputs that they belong to, counts the changes of these. Without results they are known to
// be.
static PyObject *count_changes(PyObject *self, PyObject *const *arguments, int64_t count) {
    const Updated *known = (const Updated *)PyBytes_AsString(self);
    if (count < 1 || !has_items(arguments[0], known->inputs)) return answer_of(0);
    if (count > 1 && !has_items(arguments[1], known->results)) return answer_of(0);
    uint32_t **versions = PyMem_Malloc((known->count + 1) * sizeof(uint32_t *));
    int holds = versions != 0;
    for (int64_t i = 0; holds && i < known->count; ++i) {
        PyObject *input = member(arguments[0], known->of[i].input);
        if (i + 2 * AHEAD < known->count) {
            PyObject *later = member(arguments[0], known->of[i + AHEAD].input);
            __builtin_prefetch(member(arguments[0], known->of[i + 2 * AHEAD].input));
            if (is_plain_tensor(later)) __builtin_prefetch(*(char **)((char *)later + tensor_offset) + counter_word);
        }
        holds = count == 1 || input == member(arguments[1], known->of[i].result);
        holds = holds && (versions[i] = version_of(input));
        if (holds) __builtin_prefetch(versions[i], 1);
    }
    // Python's lock is held: whoever counts without it, at this very moment, changes what is being changed here, and
    // the number is another one in any case.
    for (int64_t i = 0; holds && i < known->count; ++i)
        __atomic_store_n(versions[i], __atomic_load_n(versions[i], RELAXED) + (uint32_t)known->of[i].changes, RELAXED);
    PyMem_Free(versions);
    return answer_of(holds);
}

// Whether storages, by their addresses, have as many holders as they had, and their memory: who holds one may have it
// resized.
static int are_as_held(const int64_t *known) {
    int64_t differs = 0;
    const int64_t *one = known + 1, *end = one + 4 * known[0];
    for (; one < end; one += 4) {
        const char *storage = (const char *)one[0];
        differs |= *(const int64_t *)(storage + holders_word) ^ one[1];
        differs |= *(const int64_t *)(storage + data_word) ^ one[2];
        differs |= *(const int64_t *)(storage + size_word) ^ one[3];
    }
    return !differs;
}

static PyObject *are_held_as(PyObject *self, PyObject *nothing) {
    return answer_of(are_as_held((const int64_t *)PyBytes_AsString(self)));
}

// The gradients of tensors, which keep them.
static PyObject *gradients_of(PyObject *self, PyObject *items) {
    if (!has_items(items, 0)) { PyErr_BadArgument(); return 0; }
    const int64_t count = PyObject_Size(items);
    PyObject *found = PyTuple_New(count);
    for (int64_t i = 0; found && i < count; ++i) {
        PyObject *tensor = member(items, i);
        const int usual = is_plain_tensor(tensor) && _PyType_Lookup(tensor->type, grad_name) == grad_getter;
        PyObject *gradient = usual ? descr_get(grad_getter, tensor, tensor->type) : PyObject_GetAttr(tensor, grad_name);
        if (gradient) PyTuple_SetItem(found, i, gradient);
        else { Py_DecRef(found); return 0; }
    }
    return found;
}

static int is_gradient_of(PyObject *gradient, PyObject *tensor) {
    if (!is_plain_tensor(tensor) || gradient->type != tensor_class || !gradient_of) return 0;
    void *const *held = gradient_of(*(void **)((char *)tensor + tensor_offset));
    return *held == *(void **)((char *)gradient + tensor_offset);
}

// Gives tensors their gradients, but for those that have them already: items of the second sequence from a place on.
static PyObject *set_gradients(PyObject *self, PyObject *const *arguments, int64_t count) {
    const int64_t first = count == 3 ? PyLong_AsLongLong(arguments[2]) : 0;
    if (count < 2 || first < 0 || !has_items(arguments[0], 0) ||
        !has_items(arguments[1], first + PyObject_Size(arguments[0]))) {
        PyErr_BadArgument();
        return 0;
    }
    count = PyObject_Size(arguments[0]);
    for (int64_t i = 0; i < count; ++i) {
        PyObject *tensor = member(arguments[0], i), *gradient = member(arguments[1], first + i);
        if (!is_gradient_of(gradient, tensor) && PyObject_SetAttr(tensor, grad_name, gradient)) return 0;
    }
    return answer_of(1);
}

typedef struct { int64_t count, most, references, held, words; int64_t of[]; } Lent;

// Notes tensors that are given away. For each there is the place of the one whose gradient it becomes, the address of
// its ``TensorImpl``, that of its dictionary, as soon as it was asked for, and the words of the ``TensorImpl``, whose
// second one says then that they are gradients.
enum { PLACE, IMPL, NAMES_AT, WORDS };

static PyObject *note_given(PyObject *self, PyObject *items) {
    Lent *known = (Lent *)PyBytes_AsString(self);
    if (!has_items(items, known->count)) { PyErr_BadArgument(); return 0; }
    int64_t *one = known->of;
    for (int64_t i = 0; i < known->count; ++i, one += WORDS + known->words) {
        const int64_t *impl = *(int64_t **)((char *)member(items, i) + tensor_offset);
        one[IMPL] = (int64_t)impl;
        one[NAMES_AT] = 0;
        for (int64_t word = 0; word < known->words; ++word) one[WORDS + word] = word == 1 ? known->held : impl[word];
    }
    return answer_of(1);
}

// The gradient of a tensor, if it is what was given away, as it was then, and that tensor alone holds it: but for names
// of the user's it cannot be told from a fresh one. 0 if it is not.
static inline PyObject *left_as_given(const Lent *known, const int64_t *one, PyObject *owner) {
    if (!is_plain_tensor(owner)) return 0;
    const int64_t *impl = *gradient_of(*(void **)((char *)owner + tensor_offset)), *words = one + WORDS;
    if ((int64_t)impl != one[IMPL]) return 0;
    Words differ = words_at(impl + known->words - OWN) ^ words_at(words + known->words - OWN);
    for (int64_t i = 0; i < known->words - OWN; i += OWN) differ |= words_at(impl + i) ^ words_at(words + i);
    if (!is_nothing(differ)) return 0;
    PyObject *value = *(PyObject **)((const char *)impl + object_word);
    if (value->type != tensor_class || value->references != known->references) return 0;
    const char *begin = (const char *)value;
    if (*(int64_t *)(begin + hooks_word) || *(int64_t *)(begin + late_hooks_word)) return 0;
    return *(int64_t *)(begin + references_word) ? 0 : value;
}

// Whether a tensor that is held has no names of the user's. ``made``: asking may have made a dictionary just now.
static inline int has_no_names(PyObject *value, int64_t *names_at, int *made) {
    PyObject **names = dictionary_of(value);
    if (!names) return 0;
    *made |= (int64_t)*names != *names_at;
    *names_at = (int64_t)*names;
    return !*names || PyDict_Size(*names) == 0;
}

static void fetch_given(const int64_t *later) {
    __builtin_prefetch((const char *)later[IMPL]);
    __builtin_prefetch((const char *)later[IMPL] + 64);
    __builtin_prefetch((const char *)later[IMPL] + 128);
    __builtin_prefetch((const char *)later[WORDS + object_word / 8], 1);
    __builtin_prefetch((const char *)later[NAMES_AT]);
}

// The gradients of some items of a sequence, held, if all are left as they were given; 0 otherwise.
static PyObject *all_left(Lent *known, PyObject *owners, int *made) {
    int64_t *one = known->of;
    PyObject *found = PyTuple_New(known->count);
    *made = 0;
    for (int64_t i = 0; found && i < known->count; ++i, one += WORDS + known->words) {
        if (i + AHEAD < known->count) fetch_given(one + AHEAD * (WORDS + known->words));
        PyObject *value = left_as_given(known, one, member(owners, one[PLACE]));
        if (value) put(found, i, value);
        if (!value || !has_no_names(value, one + NAMES_AT, made)) { Py_DecRef(found); return 0; }
    }
    return found;
}

// The same, or False. Where a dictionary was made, the collector may have run, and finalizers that took hold of some:
// they are looked at again, and nothing is made any more.
static PyObject *all_left_again(Lent *known, PyObject *owners) {
    if (!has_items(owners, known->most) || !dictionary_of || _PyType_Lookup(tensor_class, grad_name) != grad_getter ||
        _PyType_Lookup(parameter_class, grad_name) != grad_getter) return answer_of(0);
    int made = 1;
    PyObject *found = 0;
    for (int turn = 0; made && turn < 2; ++turn) {
        if (found) Py_DecRef(found);
        if (!(found = all_left(known, owners, &made))) return PyErr_Occurred() ? 0 : answer_of(0);
    }
    if (!made) return found;
    Py_DecRef(found);
    return answer_of(0);
}

static Method taking = {"gradients_of", gradients_of, ONE_ARGUMENT, 0};
static Method granting = {"set_gradients", set_gradients, FASTCALL, 0};
static Method noting = {"note_given", note_given, ONE_ARGUMENT, 0};
static Method setting = {"set_versions", set_versions, ONE_ARGUMENT, 0};
static Method counting = {"count_changes", count_changes, FASTCALL, 0};
static Method holding = {"are_held_as", are_held_as, NO_ARGUMENTS, 0};

PyObject *make_taking(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&taking, known, kept); }
PyObject *make_granting(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&granting, known, kept); }
PyObject *make_noting(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&noting, known, kept); }
PyObject *make_versions(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&setting, known, kept); }
PyObject *make_counting(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&counting, known, kept); }
PyObject *make_holding(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&holding, known, kept); }
"""
