"""The C that starts a recording: it looks a last time at what the recording reads and writes, and launches it at once.

Nothing of Python's runs in between: no finalizer, no other thread, no collector. What was seen is there when the
launch is.
"""

from __future__ import annotations

STARTING = """\
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

static inline void fetch_lain(PyObject *items, int64_t at, const Lain *one, const Lain *last) {
    if (last - one < 2 * AHEAD) return;
    __builtin_prefetch(member(items, at + one[2 * AHEAD].place));
    PyObject *value = member(items, at + one[AHEAD].place);
    if (!is_plain_tensor(value)) return;
    const char *impl = *(char **)((char *)value + tensor_offset);
    __builtin_prefetch(impl + storage_word);
    __builtin_prefetch(impl + offset_word);
}

// Whether all that may not move lie where they lay. ``counters``: where changes are counted of those that are changed.
static int all_lie_there(const Places *known, PyObject *items, int64_t at, uint32_t **counters) {
    const Lain *one = known->of, *end = one + known->fixed;
    for (; one < end; ++one) {
        Lain now;
        PyObject *value = member(items, at + one->place);
        fetch_lain(items, at, one, end - 1);
        if (!lies(value, &now)) return 0;
        if (now.begin != one->begin || now.end != one->end || now.address != one->address) return 0;
        if (!counters || !one->changes) continue;
        if (!(*counters = version_of(value))) return 0;
        __builtin_prefetch(*counters++, 1);
    }
    return 1;
}

// Whether those that are copied lie apart from all others.
static int all_lie_apart(const Places *known, PyObject *items, int64_t at, uint32_t **counters) {
    const Lain *of = known->of;
    for (int64_t i = known->fixed; i < known->fixed + known->copied; ++i) {
        Lain now, other;
        PyObject *value = member(items, at + of[i].place);
        if (!lies(value, &now)) return 0;
        int meet = 0;
        for (int64_t j = 0; j < known->fixed; ++j) meet |= of[j].begin < now.end & now.begin < of[j].end;
        for (int64_t j = known->fixed; !meet && j < i; ++j) {
            if (!lies(member(items, at + of[j].place), &other)) return 0;
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
static void take_back(const Places *known, PyObject *items, int64_t at) {
    for (const Lain *one = known->of, *end = one + known->fixed + known->copied; one < end; ++one) {
        if (!one->changes || !has_items(items, at + one->place + 1)) continue;
        uint32_t *count = version_of(member(items, at + one->place));
        if (count) __atomic_store_n(count, __atomic_load_n(count, RELAXED) - (uint32_t)one->changes, RELAXED);
    }
}

// True if it was launched, False if something is not as it was, and nothing has happened; 0 for an error of the launch.
static PyObject *start_there(const Started *known, PyObject *items, int64_t at, uint32_t **counters) {
    const Places *places = known->places;
    if (known->held && !are_as_held(known->held)) return answer_of(0);
    if (!all_lie_there(places, items, at, counters)) return answer_of(0);
    if (counters && !all_lie_apart(places, items, at, counters + places->counted)) return answer_of(0);
    if (counters) count_all(places, counters);
    PyObject *done = PyObject_CallNoArgs(known->launch);
    if (done) Py_DecRef(done);
    else if (counters) take_back(places, items, at);
    return done ? answer_of(1) : 0;
}

// Of inputs; of tensors whose gradients it may give again, or None; and of whether changes are counted, and those that
// are copied have to lie apart. The same, or the gradients that are given again.
static PyObject *start(PyObject *self, PyObject *const *arguments, int64_t count) {
    const Started *known = (const Started *)PyBytes_AsString(self);
    const Places *places = known->places;
    if (count != 3 || !has_items(arguments[0], 0)) { PyErr_BadArgument(); return 0; }
    PyObject *items = arguments[0], *owners = arguments[1], *left = yes;
    const int64_t at = PyObject_Size(items) - places->count;
    if ((at && at != places->first) || (owners != none && !known->lent)) return answer_of(0);
    uint32_t **counters = 0;
    if (arguments[2] == yes && !(counters = PyMem_Malloc((places->fixed + places->copied + 1) * sizeof(uint32_t *))))
        return PyErr_NoMemory();
    const int collects = PyGC_Disable();  // an object that is made may let the collector run, and finalizers
    if (owners == none) Py_IncRef(left);
    else left = all_left_again(known->lent, owners);
    if (left && left != no) {
        PyObject *started = start_there(known, items, at, counters);
        if (started == yes) Py_DecRef(started);
        else { Py_DecRef(left); left = started; }
    }
    if (collects) PyGC_Enable();
    PyMem_Free(counters);
    return left;
}

static Method starting = {"start", start, FASTCALL, 0};

PyObject *make_starting(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&starting, known, kept); }
"""
