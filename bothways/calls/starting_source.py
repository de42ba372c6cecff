"""The C that starts a recording: it looks a last time at what the recording reads and writes, and launches it at once.

Nothing of Python's runs in between: no finalizer, no other thread, no collector. What was seen is there when the
launch is.
"""

from __future__ import annotations

import sys

STARTING = f"""\
#define COLLECTS_ANYWHERE {int(sys.version_info < (3, 12))}
""" + """\
// Where an input lies: its storage's memory, and its own address in that. ``changes``: how often it is changed.
typedef struct { uint64_t begin, end, address; int64_t place, changes; } Lain;

// Of the last ``count`` items of a sequence that has so many, or ``first`` more: the first ``fixed`` of these lie where
// they lay, those behind them are copied, and may lie anywhere.
typedef struct { int64_t first, count, fixed, copied, counted; Lain of[]; } Places;

// ``lent`` is null where nothing is given again, ``held`` where that is not to be asked.
typedef struct { PyObject *launch; const Places *places; Lent *lent; const int64_t *held; } Started;

// Where a tensor lies; 0 if it is none of a plain class.
static inline int lies(PyObject *value, Lain *lain) {
    void *tensor = (char *)value + tensor_offset, *data;
    if (!is_plain_tensor(value)) return 0;
    const char *impl = *(char **)tensor, *storage = storage_of(impl);
    if (!storage) return 0;
    lain->begin = lain->address = *(uint64_t *)(storage + data_word);
    lain->end = lain->begin + *(uint64_t *)(storage + size_word);
    if (lain->begin && !*(int64_t *)(impl + offset_word)) return 1;
    if (aoti_torch_get_data_ptr(tensor, &data)) return 0;
    lain->address = (uint64_t)data;
    return 1;
}

static inline void fetch_impl(const PyObject *value) {
    if (!is_plain_tensor(value)) return;
    const char *impl = *(char **)((char *)value + tensor_offset);
    __builtin_prefetch(impl + storage_word);
    __builtin_prefetch(impl + offset_word);
}

// Whether all that may not move lie where they lay. ``counters``: where changes are counted of those that are changed.
// The last one comes first: the guards have looked at it just now.
static int all_lie_there(const Places *known, PyObject *const *items, uint32_t **counters) {
    if (counters) counters += known->counted;
    for (const Lain *first = known->of, *one = first + known->fixed; one-- > first;) {
        Lain now;
        PyObject *value = items[one->place];
        if (one - first >= AHEAD) fetch_impl(items[one[-AHEAD].place]);
        if (!lies(value, &now)) return 0;
        if ((now.begin ^ one->begin) | (now.end ^ one->end) | (now.address ^ one->address)) return 0;
        if (!counters || !one->changes) continue;
        if (!(*--counters = version_of(value))) return 0;
        __builtin_prefetch(*counters, 1);
    }
    return 1;
}

// Whether those that are copied lie apart from all others.
static int all_lie_apart(const Places *known, PyObject *const *items, uint32_t **counters) {
    const Lain *of = known->of;
    for (int64_t i = known->fixed; i < known->fixed + known->copied; ++i) {
        Lain now, other;
        PyObject *value = items[of[i].place];
        if (!lies(value, &now)) return 0;
        int meet = 0;
        for (int64_t j = 0; j < known->fixed; ++j) meet |= of[j].begin < now.end & now.begin < of[j].end;
        for (int64_t j = known->fixed; !meet && j < i; ++j) {
            if (!lies(items[of[j].place], &other)) return 0;
            meet = other.begin < now.end && now.begin < other.end;
        }
        if (meet || (of[i].changes && !(*counters++ = version_of(value)))) return 0;
    }
    return 1;
}

static void count_all(const Places *known, uint32_t **counters) {
    for (const Lain *one = known->of, *end = one + known->fixed + known->copied; one < end; ++one) {
        if (!one->changes) continue;
        uint32_t *count = *counters++;
        __atomic_store_n(count, __atomic_load_n(count, RELAXED) + (uint32_t)one->changes, RELAXED);
    }
}

// A launch that has raised has changed nothing: what was counted for it is taken back. Others may have run meanwhile.
static void take_back(const Places *known, PyObject *const *items) {
    for (const Lain *one = known->of, *end = one + known->fixed + known->copied; one < end; ++one) {
        uint32_t *count = one->changes ? version_of(items[one->place]) : 0;
        if (count) __atomic_store_n(count, __atomic_load_n(count, RELAXED) - (uint32_t)one->changes, RELAXED);
    }
}

// Whether all is as it was: where inputs lie, and who holds what was lent.
static int is_ready(const Started *known, PyObject *const *items, uint32_t **counters) {
    const Places *places = known->places;
    if (!all_lie_there(places, items, counters)) return 0;
    if (counters && !all_lie_apart(places, items, counters + places->counted)) return 0;
    return !known->held || are_as_held(known->held);
}

// Launch it, with changes counted.
static int launched(const Started *known, PyObject *const *items, uint32_t **counters) {
    if (counters) count_all(known->places, counters);
    PyObject *done = PyObject_CallNoArgs(known->launch);
    if (done) Py_DecRef(done);
    else if (counters) take_back(known->places, items);
    return done != 0;
}

// Of inputs, as a tuple; of tensors whose gradients it may give again, or None; and of whether changes are counted, and
// those that are copied have to lie apart. Gives the gradients that are given again, or True; False if something is not
// as it was, and nothing has happened.
static PyObject *start(PyObject *self, PyObject *const *arguments, int64_t count) {
    const Started *known = (const Started *)PyBytes_AsString(self);
    const Places *places = known->places;
    if (count != 3 || arguments[0]->type != tuple_class) { PyErr_BadArgument(); return 0; }
    PyObject *owners = arguments[1], *left;
    const int64_t at = PyObject_Size(arguments[0]) - places->count;
    if ((at && at != places->first) || (owners != none && !known->lent)) return answer_of(0);
    PyObject *const *items = items_of(arguments[0]) + at;
    uint32_t **counters = 0;
    if (arguments[2] == yes && !(counters = PyMem_Malloc((places->fixed + places->copied + 1) * sizeof(uint32_t *))))
        return PyErr_NoMemory();
    // Up to Python 3.11 an object that is made may let the collector run, and finalizers; later ones wait for bytecode.
    const int collects = COLLECTS_ANYWHERE && PyGC_Disable();
    if (!is_ready(known, items, counters)) left = answer_of(0);
    else left = owners == none ? answer_of(1) : all_left_again(known->lent, owners);
    if (left && left != no && !launched(known, items, counters)) {
        Py_DecRef(left);
        left = 0;
    }
    if (collects) PyGC_Enable();
    PyMem_Free(counters);
    return left;
}

static Method starting = {"start", start, FASTCALL, 0};

PyObject *make_starting(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&starting, known, kept); }
"""
