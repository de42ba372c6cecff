"""The C that checks a table of guards: one function, the same for every program, that walks rows.

A row reads something (``READS``) or asks something (``ASKS``). The function is a builtin of Python's: it takes the
arguments of a call and returns False, True, or a tuple of what the program wants to have been handed over.
"""

from __future__ import annotations

from bothways.calls.answer_source import ANSWER
from bothways.calls.known_source import KNOWN_TENSORS, KNOWN_TYPES
from bothways.calls.memo_source import MEMO, MEMO_TYPES

# Row -> what it does, as C over ``row``, ``value`` (what is in the slot it starts from) and ``made`` (what it reads).
READS: dict[str, str] = {
    "OBJECT": "made = row->object; Py_IncRef(made);",
    "CALL": "made = PyObject_CallNoArgs(row->object);",
    "ATTRIBUTE": "made = PyObject_GetAttr(value, row->object);",
    # What the instance has; only for classes whose own attributes do not come first, see PLAIN_CLASS.
    "FIELD": "made = field(plain ? slots[row->data] : 0, value, row->object);",
    "DICTIONARY": "made = plain ? PyObject_GenericGetDict(value, 0) : PyObject_GetAttr(value, row->object);",
    "ITEM": "made = item(value, row->object);",
    # What dict.get gives, by a key that is in a slot or a constant.
    "ENTRY": "made = row->flag ? entry(value, slots[row->data], plain) : entry(value, row->object, 0);",
    # What the entries of a dictionary hold, as a tuple.
    "VALUES": "made = values(value, row->object);",
    "ITEM_OF_BASE": "made = PyObject_CallFunctionObjArgs(row->other, value, row->object, (PyObject *)0);",
}

# Row -> whether it holds, as C: 1, 0, or -1 with an exception.
ASKS: dict[str, str] = {
    "PLAIN_CLASS": "plain &= _PyType_Lookup(row->object, row->other) == (PyObject *)row->data; holds = 1;",
    "TYPE": "holds = value->type == row->object;",
    "IS": "holds = (value == row->object) == row->flag;",
    "IS_WEAKLY": "holds = is_referent(value, row->object); if (holds >= 0) holds = holds == row->flag;",
    "SAME": "holds = (value == slots[row->data]) == row->flag;",
    "TRUE": "holds = is_true(value); if (holds >= 0) holds = holds == row->flag;",
    "EQUAL": "holds = PyObject_RichCompareBool(value, row->object, 2);",
    "LENGTH": "int64_t length = PyObject_Size(value); holds = length < 0 ? -1 : length == row->data;",
    "KEYS": "holds = has_keys(value, row->object, row->data);",
    "IDENTITIES": "holds = are_in_order(value, (const int64_t *)((const char *)table + row->data));",
    "CONTAINS": "holds = PySequence_Contains(value, row->object); if (holds >= 0) holds = holds == row->flag;",
    "MEMBERS": "holds = are_members(value, slots[row->data], row->object);",
    "TENSOR": "holds = is_tensor_like(value, (const Tensor *)((const char *)table + row->data));",
    "STATE": "holds = ((_Bool (*)(void))row->data)() == row->flag;",
    "GRADIENT": "holds = requires_grad(value, row, plain);",
    "NAMES": "holds = are_names_unchanged((Names *)row->data);",
    "HOLDS": "holds = is_said_to_hold(row->other);",
    "BODIES": "holds = are_bodies_unchanged((const int64_t *)row->data);",
    "APART": "holds = are_apart(slots, (int64_t *)((char *)table + row->data));",
    "DISTINCT": "holds = are_distinct(slots, (const int64_t *)((const char *)table + row->data));",
}

OPERATIONS: tuple[str, ...] = (*READS, *ASKS)

# Of a tensor's facts, those that are compared.
FACTS = ("DTYPE", "SIZES", "CONTIGUOUS", "STRIDES", "DEVICE_TYPE", "DEVICE_INDEX", "MEMORY")

TYPES = """\
typedef struct { int32_t operation, to, from, flag; PyObject *object, *other; int64_t data; } Row;
typedef struct { int64_t rows, slots, arguments, results; Memo *memo; Row row[]; } Table;
typedef struct { int64_t facts, dtype, device_type, device_index, dimensions, numbers[]; } Tensor;
typedef struct { PyObject *names; uint64_t version; int64_t count, is_whole, ignored; PyObject *entries[]; } Names;
"""

HELPERS = """\
static PyObject *field(PyObject *dictionary, PyObject *owner, PyObject *name) {
    PyObject *found = dictionary ? PyDict_GetItemWithError(dictionary, name) : 0;
    if (!found) return PyErr_Occurred() ? 0 : PyObject_GetAttr(owner, name);
    Py_IncRef(found);
    return found;
}

static PyObject *item(PyObject *owner, PyObject *key) {
    if (owner->type != dictionary) return PyObject_GetItem(owner, key);
    PyObject *found = PyDict_GetItemWithError(owner, key);
    if (found) Py_IncRef(found);
    return found;
}

// Tensors are hashed by a function of Python's, which gives their addresses.
static PyObject *entry(PyObject *owner, PyObject *key, int plain) {
    const int known = plain && get_item_known_hash && (key->type == tensor_class || key->type == parameter_class);
    PyObject *found = known ? get_item_known_hash(owner, key, (int64_t)key) : PyDict_GetItemWithError(owner, key);
    if (!found && PyErr_Occurred()) return 0;
    if (!found) found = none;
    Py_IncRef(found);
    return found;
}

static PyObject *values(PyObject *owner, PyObject *name) {
    PyObject *view = PyObject_CallMethodObjArgs(owner, name, (PyObject *)0);
    PyObject *made = view ? PySequence_Tuple(view) : 0;
    if (view) Py_DecRef(view);
    return made;
}

static int is_true(PyObject *value) {
    if (value == yes || value == no) return value == yes;
    return value->type == dictionary ? PyDict_Size(value) != 0 : PyObject_IsTrue(value);
}

static int is_referent(PyObject *value, PyObject *reference) {
    PyObject *referent = PyObject_CallNoArgs(reference);
    if (!referent) return -1;
    int holds = referent == value;
    Py_DecRef(referent);
    return holds;
}

static int has_keys(PyObject *value, PyObject *keys, int64_t count) {
    if (value->type == dictionary) {
        PyObject *key, *entry;
        int64_t position = 0, seen = 0;
        if (PyDict_Size(value) != count) return 0;
        while (PyDict_Next(value, &position, &key, &entry) && key == PyTuple_GetItem(keys, seen)) ++seen;
        if (seen == count) return 1;
    }
    PyObject *found = PySequence_Tuple(value);
    if (!found) return -1;
    int holds = PyObject_RichCompareBool(found, keys, 2);
    Py_DecRef(found);
    return holds;
}

// Whether something gives these objects, known by their addresses, and no others.
static int are_in_order(PyObject *value, const int64_t *listed) {
    PyObject *found = PySequence_Tuple(value);
    if (!found) return -1;
    int64_t same = 0, count = PyObject_Size(found);
    if (count == listed[0]) while (same < count && PyTuple_GetItem(found, same) == (PyObject *)listed[same + 1]) ++same;
    Py_DecRef(found);
    return count == listed[0] && same == count;
}

// Whether exactly those of some keys are in a dictionary that are expected to be.
static int are_members(PyObject *value, PyObject *owner, PyObject *expected) {
    PyObject *keys = PySequence_Tuple(value);
    if (!keys) return -1;
    int64_t same = 0, count = PyObject_Size(keys);
    int found = 0;
    if (count == PyObject_Size(expected)) {
        for (; same < count; ++same) {
            found = PySequence_Contains(owner, PyTuple_GetItem(keys, same));
            if (found < 0 || found != (PyTuple_GetItem(expected, same) == yes)) break;
        }
    }
    int holds = count == PyObject_Size(expected) && same == count;
    Py_DecRef(keys);
    return found < 0 ? -1 : holds;
}

// Asked of a tensor that is strided: what is batched has no storage, and says so by an error.
static int has_plain_memory(void *tensor) {
    int64_t size;
    if (is_negated(tensor) || is_conjugated(tensor) || is_zero(tensor) || is_functional(tensor)) return 0;
    return !aoti_torch_get_storage_size(tensor, &size);
}

static int is_tensor_like(PyObject *value, const Tensor *like) {
    void *tensor = (char *)value + tensor_offset;
    int64_t count, *numbers, facts = like->facts;
    int32_t code;
    _Bool contiguous;
    if (aoti_torch_get_layout(tensor, &code) || code != strided) return 0;
    if (facts & DTYPE && (aoti_torch_get_dtype(tensor, &code) || code != like->dtype)) return 0;
    if (facts & DEVICE_TYPE && (aoti_torch_get_device_type(tensor, &code) || code != like->device_type)) return 0;
    if (facts & DEVICE_INDEX && (aoti_torch_get_device_index(tensor, &code) || code != like->device_index)) return 0;
    if (facts & (SIZES | STRIDES) && (aoti_torch_get_dim(tensor, &count) || count != like->dimensions)) return 0;
    if (facts & SIZES) {
        if (aoti_torch_get_sizes(tensor, &numbers)) return 0;
        for (int64_t i = 0; i < count; ++i) if (numbers[i] != like->numbers[i]) return 0;
    }
    if (facts & CONTIGUOUS && (aoti_torch_is_contiguous(tensor, &contiguous) || !contiguous)) return 0;
    if (facts & STRIDES) {
        if (aoti_torch_get_strides(tensor, &numbers)) return 0;
        for (int64_t i = 0; i < count; ++i) if (numbers[i] != like->numbers[like->dimensions + i]) return 0;
    }
    return !(facts & MEMORY) || has_plain_memory(tensor);
}

static int requires_grad(PyObject *value, const Row *row, int plain) {
    if (plain && needs_gradient) return needs_gradient(*(void **)((char *)value + tensor_offset)) == row->flag;
    PyObject *answer = plain ? descr_get(row->other, value, value->type) : PyObject_GetAttr(value, row->object);
    if (!answer) return -1;
    Py_DecRef(answer);
    return answer == (row->flag ? yes : no);
}

static int is_as_good(PyObject *one, PyObject *other) {
    if (one == other) return 1;
    if (!one || !other || one->type != other->type) return 0;
    if (one->type != whole_number && one->type != text && one->type != raw) return 0;
    return PyObject_RichCompareBool(one, other, 2);
}

// Since Python 3.14 dictionaries have no version, and those of stamps are watched: how often one has changed is counted
// by a part of its address, which others may have as well.
static uint64_t changes[1024];
static int watcher = -1;

static uint64_t *changes_of(const PyObject *names) { return changes + ((uint64_t)names >> 4 & 1023); }

static int note_change(int event, PyObject *names, PyObject *name, PyObject *value) { ++*changes_of(names); return 0; }

static void begin_watching(void) {
    if (version_offset || !add_watcher || watcher >= 0) return;
    watcher = add_watcher(note_change);
    if (watcher < 0) PyErr_Clear();
}

static int is_watched(PyObject *names) {
    if (version_offset) return 1;
    if (watcher >= 0 && watch(watcher, names) == 0) return 1;
    PyErr_Clear();
    return 0;
}

// A stamp of ``runtime/stamps.py``: every change to a dictionary gives it another version; what was compared is not
// compared again until then.
static int are_names_unchanged(Names *stamp) {
    uint64_t version = *changes_of(stamp->names) + 1;
    if (version_offset) version = *(const uint64_t *)((const char *)stamp->names + version_offset);
    if (version && version == stamp->version) return 1;
    if (!is_watched(stamp->names)) version = 0;
    PyObject **entry = stamp->entries;
    for (int64_t i = 0; i < stamp->count; ++i, entry += 2) {
        PyObject *found = PyDict_GetItemWithError(stamp->names, entry[0]);
        int same = !found && PyErr_Occurred() ? -1 : is_as_good(found, entry[1]);
        if (same != 1) return same;
    }
    if (stamp->is_whole) {
        int64_t size = PyDict_Size(stamp->names);
        for (int64_t i = 0; i < stamp->ignored; ++i) size -= PyDict_GetItemWithError(stamp->names, entry[i]) != 0;
        if (size != stamp->count) return 0;
    }
    stamp->version = version;
    return 1;
}

static int is_said_to_hold(PyObject *asked) {
    PyObject *answer = PyObject_CallNoArgs(asked);
    if (!answer) return -1;
    int holds = answer == yes;
    Py_DecRef(answer);
    return holds;
}

static int are_bodies_unchanged(const int64_t *listed) {
    PyObject *const *body = (PyObject *const *)(listed + 1);
    for (int64_t i = 0; i < listed[0]; ++i, body += 4) {
        if (PyFunction_GetCode(body[0]) != body[1]) return 0;
        if (PyFunction_GetDefaults(body[0]) != body[2]) return 0;
        if (PyFunction_GetKwDefaults(body[0]) != body[3]) return 0;
    }
    return 1;
}

static int are_all_different(void **values, int64_t count) {
    int64_t size = 16, different = 1;
    while (size < 2 * count) size *= 2;
    void **seen = PyMem_Malloc(size * sizeof(void *));
    if (!seen) return 0;
    for (int64_t i = 0; i < size; ++i) seen[i] = 0;
    for (int64_t i = 0; different && i < count; ++i) {
        void *value = values[i];
        if (!value) continue;
        uint64_t place = (uint64_t)value * 0x9E3779B97F4A7C15u >> 20 & (uint64_t)(size - 1);
        while (seen[place] && seen[place] != value) place = place + 1 & (uint64_t)(size - 1);
        different = seen[place] != value;
        seen[place] = value;
    }
    PyMem_Free(seen);
    return (int)different;
}

static int are_distinct(PyObject **slots, const int64_t *listed) {
    int64_t count = listed[0];
    void **values = PyMem_Malloc((count + 1) * sizeof(void *));
    if (!values) return 0;
    for (int64_t i = 0; i < count; ++i) values[i] = slots[listed[i + 1]];
    int distinct = are_all_different(values, count);
    PyMem_Free(values);
    return distinct;
}

typedef struct { uint64_t begin, end; int64_t slot; } Memory;

// Where the memory lies that a tensor is a part of; one without any is empty. Tensors of inference mode are not told
// of: they may refuse to be changed.
static int memory_of(PyObject *value, Memory *memory) {
    void *tensor = (char *)value + tensor_offset, *data;
    int64_t offset, size;
    int32_t code;
    if ((value->type != tensor_class && value->type != parameter_class) || is_inference(tensor)) return 0;
    char *storage = storage_word ? *(char **)(*(char **)tensor + storage_word) : 0;
    if (storage && *(void **)(storage + data_word)) {
        memory->begin = *(uint64_t *)(storage + data_word);
        memory->end = memory->begin + *(int64_t *)(storage + size_word);
        return 1;
    }
    if (aoti_torch_get_data_ptr(tensor, &data) || aoti_torch_get_storage_size(tensor, &size)) return 0;
    if (aoti_torch_get_storage_offset(tensor, &offset)) return 0;
    if (offset && aoti_torch_get_dtype(tensor, &code)) return 0;
    memory->begin = (uint64_t)data - (offset ? offset * aoti_torch_dtype_element_size(code) : 0);
    memory->end = memory->begin + (data ? size : 0);
    return 1;
}

static int are_in_a_row(const Memory *memories, int64_t count) {
    for (int64_t i = 1; i < count; ++i) if (memories[i].begin < memories[i - 1].end) return 0;
    return 1;
}

static void put_in_order(Memory *memories, int64_t count) {
    for (int64_t gap = count / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11) {
        for (int64_t i = gap; i < count; ++i) {
            Memory moved = memories[i];
            int64_t at = i;
            for (; at >= gap && memories[at - gap].begin > moved.begin; at -= gap) memories[at] = memories[at - gap];
            memories[at] = moved;
        }
    }
}

// Whether no tensor's memory lies over another's: storages may be two for the same bytes. The order in which the
// memories lie is kept for the next call, as most of them stay where they are.
static int are_apart(PyObject **slots, int64_t *listed) {
    int64_t count = listed[0], found = 0, plain = 1;
    Memory few[16], *memories = count <= 16 ? few : PyMem_Malloc(count * sizeof(Memory));
    if (!memories) return 0;
    for (int64_t i = 0; plain && i < count; ++i) {
        memories[found].slot = listed[i + 1];
        plain = memory_of(slots[listed[i + 1]], memories + found);
        found += memories[found].end != memories[found].begin;
    }
    int apart = plain && are_in_a_row(memories, found);
    if (plain && !apart) {
        put_in_order(memories, found);
        apart = are_in_a_row(memories, found);
        if (found == count) for (int64_t i = 0; i < count; ++i) listed[i + 1] = memories[i].slot;
    }
    if (memories != few) PyMem_Free(memories);
    return apart;
}
"""

# Slots hold what was read, the arguments first; those are borrowed.
WALK = """\
static inline int walk(const Table *table, const Row *row, PyObject **slots, int *is_plain) {
    PyObject *value = slots[row->from], *made;
    int plain = *is_plain, holds = 0;
    switch (row->operation) {
@CASES@
    default: holds = 0;
    }
    *is_plain = plain;
    return holds;
read:
    slots[row->to] = made;
    return made ? 1 : -1;
}
"""

CHECK = """\
static PyObject *check_all(const Table *table, Memo *memo, PyObject *const *arguments, int64_t count) {
    PyObject *few[64], **slots = few, *answer;
    Parts parts;
    int plain = 1, holds = 1;
    if (table->slots > 64 && !(slots = PyMem_Malloc(table->slots * sizeof(PyObject *)))) { Py_IncRef(no); return no; }
    for (int64_t i = 0; i < count; ++i) slots[i] = arguments[i];
    for (int64_t i = count; i < table->slots; ++i) slots[i] = 0;
    if (memo) {
        parts = parts_of(memo);
        begin_noting(table, memo, &parts, arguments);
    }
    for (const Row *row = table->row, *end = row + table->rows; row < end && holds == 1; ++row) {
        if (memo) note_before(memo, &parts, row, slots);
        holds = walk(table, row, slots, &plain);
        if (memo && holds == 1) note_after(table, memo, &parts, row, slots, plain);
    }
    if (memo && holds == 1 && plain) end_noting(table, memo, &parts);
    answer = holds == 1 ? empty_answer(table) : refused(holds);
    if (answer && holds == 1) fill(table, answer, slots, 0, 0, 0);
    for (int64_t i = count; i < table->slots; ++i) if (slots[i]) Py_DecRef(slots[i]);
    if (slots != few) PyMem_Free(slots);
    return answer;
}

static PyObject *check(PyObject *self, PyObject *const *arguments, int64_t count) {
    const Table *table = (const Table *)PyBytes_AsString(self);
    Memo *memo = table->memo;
    if (count != table->arguments) { Py_IncRef(no); return no; }
    if (!memo || memo->is_busy || !version_offset) return check_all(table, 0, arguments, count);
    PyObject *answer = 0;
    int noting = 1;
    memo->is_busy = 1;  // what a row calls may call this
    if (memo->is_noted) {
        if (check_again(table, memo, arguments, &answer)) {
            memo->misses = memo->vain = 0;
            memo->is_busy = 0;
            return answer;
        }
        noting = memo->misses++ > 0;  // a call for another program: the next one may be as the last
    }
    if (noting && memo->pause) {
        --memo->pause;
        noting = 0;
    }
    if (noting && ++memo->vain > PATIENCE) {
        memo->vain = 0;
        memo->pause = PAUSE;
    }
    answer = check_all(table, noting ? memo : 0, arguments, count);
    memo->is_busy = 0;
    return answer;
}

static Method checking = {"check", check, FASTCALL, 0};

PyObject *make_check(PyObject *table, PyObject *constants) {
    begin_watching();
    return PyCFunction_NewEx(&checking, table, constants);
}
"""


def guard_text() -> str:
    """The C of the guards; declarations of what it calls stand above it."""
    cases = [f"    case {name}: {{ {code} goto read; }}" for name, code in READS.items()]
    cases += [f"    case {name}: {{ {code} break; }}" for name, code in ASKS.items()]
    facts = ", ".join(f"{name} = {1 << bit}" for bit, name in enumerate(FACTS))
    asked = f"enum {{ ASKED = {len(READS)} }};"
    enums = f"enum {{ {', '.join(OPERATIONS)} }};\n{asked}\nenum {{ {facts} }};\n"
    walk = WALK.replace("@CASES@", "\n".join(cases))
    return "\n".join([enums, KNOWN_TYPES, MEMO_TYPES, TYPES, HELPERS, walk, KNOWN_TENSORS, MEMO, ANSWER, CHECK])
