"""The C that tells of hundreds of tensors in one pass whether they lie where they lay, and puts results in order.

A step asks the same of the same tensors at every call: whether their memories lie apart, whether a recording reads and
writes there. One number stands for the answers, and is another one as soon as any tensor lies elsewhere.
"""

from __future__ import annotations

LOOKING = """\
typedef struct { uint64_t begin, end, address; int64_t at; } Lying;  // ``at``: who comes at this place in memory
typedef struct { int64_t count, number; Lying of[]; } Looked;

static int64_t numbers_given;

// Where a tensor's memory begins and ends, and where in it the tensor does. Of one of inference mode that is not told:
// it may refuse to be changed.
static int see(PyObject *value, Lying *seen) {
    void *tensor = (char *)value + tensor_offset, *data;
    Memory memory;
    if (!is_plain_tensor(value) || is_inference(tensor)) return 0;
    const char *impl = *(char **)tensor, *storage = storage_of(impl);
    seen->begin = seen->address = storage ? *(uint64_t *)(storage + data_word) : 0;
    if (seen->begin && !*(int64_t *)(impl + offset_word)) {
        seen->end = seen->begin + *(uint64_t *)(storage + size_word);
        return 1;
    }
    if (!memory_of(value, &memory) || aoti_torch_get_data_ptr(tensor, &data)) return 0;
    seen->begin = memory.begin;
    seen->end = memory.end;
    seen->address = (uint64_t)data;
    return 1;
}

static int lie_apart(Looked *known) {
    const int64_t count = known->count;
    int64_t found = 0;
    Memory *memories = PyMem_Malloc((count + 1) * sizeof(Memory));
    if (!memories) return 0;
    for (int64_t i = 0; i < count; ++i) {
        const Lying *one = known->of + known->of[i].at;
        Memory memory = {one->begin, one->end, known->of[i].at};
        memories[found] = memory;
        found += one->begin != one->end;
    }
    int apart = are_in_a_row(memories, found);
    if (!apart) {
        put_in_order(memories, found);
        apart = are_in_a_row(memories, found);
        if (found == count) for (int64_t i = 0; i < count; ++i) known->of[i].at = memories[i].slot;
    }
    PyMem_Free(memories);
    return apart;
}

// A number that stands for where the tensors of a tuple lie, each apart from the others; 0 where that is not sure.
static PyObject *look(PyObject *self, PyObject *items) {
    Looked *known = (Looked *)PyBytes_AsString(self);
    if (items->type != tuple_class || PyObject_Size(items) != known->count) return PyLong_FromLongLong(0);
    int64_t number = known->number;
    for (int64_t i = 0; i < known->count; ++i) {
        Lying seen, *before = known->of + i;
        if (i + 2 * AHEAD < known->count) {
            PyObject *later = items_of(items)[i + AHEAD];
            __builtin_prefetch(items_of(items)[i + 2 * AHEAD]);
            if (is_plain_tensor(later)) {
                const char *impl = *(char **)((char *)later + tensor_offset);
                __builtin_prefetch(impl + storage_word);
                __builtin_prefetch(impl + offset_word);
            }
        }
        if (!see(items_of(items)[i], &seen)) {
            known->number = 0;
            return PyLong_FromLongLong(0);
        }
        if (seen.begin == before->begin && seen.end == before->end && seen.address == before->address) continue;
        before->begin = seen.begin;
        before->end = seen.end;
        before->address = seen.address;
        number = 0;
    }
    if (!number && lie_apart(known)) number = ++numbers_given;
    known->number = number;
    return PyLong_FromLongLong(number);
}

typedef struct { int64_t count, first, second; int64_t of[]; } Arranged;

// Items of two sequences as one tuple; those of the second follow those of the first.
static PyObject *arrange(PyObject *self, PyObject *const *arguments, int64_t count) {
    const Arranged *known = (const Arranged *)PyBytes_AsString(self);
    if (count != 2 || !has_items(arguments[0], known->first) || !has_items(arguments[1], known->second)) {
        PyErr_BadArgument();
        return 0;
    }
    PyObject *arranged = PyTuple_New(known->count);
    for (int64_t i = 0; arranged && i < known->count; ++i) {
        const int64_t place = known->of[i], behind = place - known->first;
        PyObject *value = behind < 0 ? member(arguments[0], place) : member(arguments[1], behind);
        put(arranged, i, value);
    }
    return arranged;
}

static Method looking = {"look", look, ONE_ARGUMENT, 0};
static Method arranging = {"arrange", arrange, FASTCALL, 0};

PyObject *make_looking(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&looking, known, kept); }
PyObject *make_arranging(PyObject *known, PyObject *kept) { return PyCFunction_NewEx(&arranging, known, kept); }
"""
