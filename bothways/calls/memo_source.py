"""The C that remembers what a table of guards has read, so that the next check only asks whether all of it is the same.

Rows that follow from what did not change are not walked again. A dictionary has the same entries as long as it has the
same version, a list if it holds the same objects, a tensor is what it was if the words of its ``TensorImpl`` are. What
is remembered are addresses without references: each object is looked at only after what holds it was found unchanged,
and nothing but Python's own C runs meanwhile. Rows of which none of this is known are walked at every check, after
that, and say so themselves.
"""

from __future__ import annotations

MEMO_HEAD, MEMO_ENTRY = 17, 4  # words of what comes first, and of each thing that is remembered

MEMO_TYPES = """\
enum { ARGUMENT_IS, TYPE_IS, VERSION_IS, ITEMS_ARE, GETS, DICTIONARY_IS, REFERENT_IS, TENSOR_IS, WORD_IS, CLASS_HAS };
enum { UNKNOWN, ALIVE, SURE };  // of a slot: whether it holds the same address, or certainly the same object
enum { PATIENCE = 4, PAUSE = 256 };  // so many checks that were remembered for nothing, and how many follow without
typedef struct { int32_t kind, slot; int64_t a, b, c; } Noted;
typedef struct {
    int64_t slots, rows, room, most_tensors;  // as Python has made it
    int64_t is_noted, is_busy, entries, rests, needs, used, misses, vain, pause, getters;
    int64_t tensors, forms, is_placed;  // whether groups that are handed over have none but tensors that are known
    int64_t words[];
} Memo;
typedef struct {
    PyObject **seen, **slots;
    Noted *entry;
    KnownTensor *tensor;
    int64_t *room, *forms;
    int32_t *first, *following, *first_ask, *following_ask, *rest, *needed, *record;
    uint8_t *known, *noted, *based, *is_needed, *loose;
} Parts;
"""

MEMO = """\
// Rows that look at no slot.
static int is_slotless(int32_t operation) {
    return operation == OBJECT || operation == CALL || operation == PLAIN_CLASS || operation == STATE ||
           operation == NAMES || operation == HOLDS || operation == BODIES || operation == APART ||
           operation == DISTINCT;
}

static int64_t room_of_forms(const Memo *memo) { return memo->most_tensors * (tensor_length / 8); }

static Parts parts_of(Memo *memo) {
    Parts parts;
    parts.seen = (PyObject **)memo->words;
    parts.slots = parts.seen + memo->slots;
    parts.entry = (Noted *)(parts.slots + memo->slots);
    parts.tensor = (KnownTensor *)(parts.entry + memo->rows);
    parts.room = (int64_t *)(parts.tensor + memo->most_tensors);
    parts.forms = parts.room + memo->room;
    parts.first = (int32_t *)(parts.forms + room_of_forms(memo));
    parts.first_ask = parts.first + memo->slots;
    parts.needed = parts.first_ask + memo->slots;
    parts.record = parts.needed + memo->slots;
    parts.following = parts.record + memo->slots;
    parts.following_ask = parts.following + memo->rows;
    parts.rest = parts.following_ask + memo->rows;
    parts.known = (uint8_t *)(parts.rest + memo->rows);
    parts.noted = parts.known + memo->slots;
    parts.based = parts.noted + memo->slots;
    parts.is_needed = parts.based + memo->slots;
    parts.loose = parts.is_needed + memo->slots;
    return parts;
}

static int is_plain_tensor(const PyObject *value) {
    return value->type == tensor_class || value->type == parameter_class;
}

// Whether the length, the entries by raw access, and nothing else of it are a dictionary's.
static int is_dictionary(const PyObject *value) {
    return value->type == dictionary || value->type == ordered_class || value->type == default_class;
}

static int is_row_of_items(const PyObject *value) { return value->type == list_class || value->type == tuple_class; }

static int is_one_of_a_kind(const PyObject *value) { return value == none || value == yes || value == no; }

// Objects whose class and value are theirs for ever.
static int is_constant(const PyObject *value) {
    return is_one_of_a_kind(value) || value->type == whole_number || value->type == text || value->type == raw ||
           value->type == fraction;
}

static uint64_t version_of_names(const PyObject *names) {
    return *(const uint64_t *)((const char *)names + version_offset);
}

static void add(Memo *memo, const Parts *parts, int kind, int64_t slot, int64_t a, int64_t b, int64_t c) {
    Noted added = {kind, (int32_t)slot, a, b, c};
    if (memo->entries < memo->rows) parts->entry[memo->entries] = added;
    ++memo->entries;
}

static int note_tensor(Memo *memo, const Parts *parts, int64_t slot, PyObject *value) {
    KnownTensor *known = parts->tensor + memo->tensors;
    if (memo->tensors == memo->most_tensors) return 0;
    if (!know_tensor(value, known, parts->forms, &memo->forms, room_of_forms(memo))) return 0;
    parts->record[slot] = (int32_t)++memo->tensors;
    return 1;
}

static PyObject *member(PyObject *owner, int64_t index) {
    return owner->type == list_class ? PyList_GetItem(owner, index) : items_of(owner)[index];
}

// Fill an item of a new tuple.
static inline void put(PyObject *into, int64_t index, PyObject *value) {
    if (is_plain_tensor(value)) ++value->references;
    else Py_IncRef(value);
    items_of(into)[index] = value;
}

static int note_items(Memo *memo, const Parts *parts, int64_t slot, PyObject *value) {
    int64_t count = PyObject_Size(value);
    if (memo->used + count > memo->room) return 0;
    for (int64_t i = 0; i < count; ++i) parts->room[memo->used + i] = (int64_t)member(value, i);
    add(memo, parts, ITEMS_ARE, slot, memo->used, count, (int64_t)value->type);
    memo->used += count;
    return 1;
}

static int are_items_same(PyObject *value, const Noted *entry, const int64_t *room) {
    if ((int64_t)value->type != entry->c || PyObject_Size(value) != entry->b) return 0;
    for (int64_t i = 0; i < entry->b; ++i) if ((int64_t)member(value, i) != room[i]) return 0;
    return 1;
}

// Before a row is walked: note what it is going to look into.
static void note_before(Memo *memo, const Parts *parts, const Row *row, PyObject **slots) {
    int64_t slot = row->operation == FIELD ? row->data : row->from;
    PyObject *value = slots[slot];
    if (is_slotless(row->operation) || !value || !parts->known[slot] || parts->noted[slot]) return;
    if (row->operation == IS || row->operation == IS_WEAKLY || row->operation == SAME) return;
    if (is_dictionary(value)) {
        add(memo, parts, VERSION_IS, slot, (int64_t)version_of_names(value), (int64_t)value->type, 0);
        parts->noted[slot] = 1;
    } else if (is_row_of_items(value)) {
        parts->noted[slot] = (uint8_t)note_items(memo, parts, slot, value);
    } else if (is_plain_tensor(value)) {
        parts->noted[slot] = (uint8_t)note_tensor(memo, parts, slot, value);
    }
}

// That hooks are found in a word of the tensor is so as long as its class says so.
static int note_getter(Memo *memo, const Parts *parts, PyObject *cls, PyObject *name) {
    PyObject *getter = name == hooks_name ? hooks_getter : late_hooks_getter;
    const int64_t bit = 1 << (2 * (cls == parameter_class) + (name == hooks_name));
    if (_PyType_Lookup(cls, name) != getter) return 0;
    if (!(memo->getters & bit)) add(memo, parts, CLASS_HAS, 0, (int64_t)cls, (int64_t)name, (int64_t)getter);
    memo->getters |= bit;
    return 1;
}

// Nothing else follows from a tensor without hooks: that it has none is looked at with all else of it. What follows
// from hooks is looked at after the tensor.
static void note_hooks(Memo *memo, const Parts *parts, int64_t slot, int64_t word, int64_t found) {
    const int64_t record = parts->record[slot] - 1;
    if (!found) {
        parts->tensor[record].asks |= word == hooks_word ? HAS_NO_HOOKS : HAS_NO_LATE_HOOKS;
        return;
    }
    add(memo, parts, TENSOR_IS, slot, record, 0, 0);
    add(memo, parts, WORD_IS, slot, word, found, 0);
}

static int64_t hooks_word_of(const Row *row) {
    if (row->object == hooks_name) return hooks_word;
    return row->object == late_hooks_name ? late_hooks_word : 0;
}

static int are_all_known(const Parts *parts, const int64_t *listed) {
    for (int64_t i = 0; i < listed[0]; ++i) {
        if (!parts->known[listed[i + 1]]) return 0;
        parts->based[listed[i + 1]] = 1;
    }
    return 1;
}

// After a row was walked: whether it follows from what was noted. What it has read is known then, too.
static int follows(const Table *table, Memo *memo, const Parts *parts, const Row *row, PyObject **slots, int plain) {
    const int64_t base = row->from;
    PyObject *value = slots[base], *made = row->operation < ASKED ? slots[row->to] : 0;
    const int known = parts->known[base], noted = known && parts->noted[base];
    const int64_t *listed = (const int64_t *)((const char *)table + row->data);
    int reads = UNKNOWN;
    switch (row->operation) {
    case OBJECT: reads = SURE; break;
    case CALL:
        if (row->object->type != reference_class || !get_referent || made == none) break;
        add(memo, parts, REFERENT_IS, 0, (int64_t)row->object, (int64_t)made, 0);
        reads = ALIVE;
        break;
    case ATTRIBUTE:
        if (known && (value->type == function_class || value->type == cell_class)) {
            add(memo, parts, GETS, base, (int64_t)row->object, (int64_t)made, (int64_t)value->type);
            reads = ALIVE;
        } else if (noted && is_plain_tensor(value) && hooks_word_of(row)) {
            int64_t word = hooks_word_of(row), found = *(int64_t *)((char *)value + word);
            if (found != (made == none ? 0 : (int64_t)made)) break;
            if (!note_getter(memo, parts, value->type, row->object)) break;
            note_hooks(memo, parts, base, word, found);
            reads = ALIVE;
        }
        break;
    case FIELD:
        if (!parts->known[row->data] || !parts->noted[row->data] || !plain) break;
        if (slots[row->data]->type == dictionary && PyDict_GetItemWithError(slots[row->data], row->object) == made)
            reads = SURE;
        break;
    case DICTIONARY:
        if (!known || !plain) break;
        add(memo, parts, DICTIONARY_IS, base, 0, (int64_t)made, (int64_t)value->type);
        reads = ALIVE;
        break;
    case ITEM:
        if (noted && value->type == dictionary) reads = SURE;
        else if (noted && is_row_of_items(value)) reads = ALIVE;
        break;
    case ENTRY:
        if (!noted || !is_dictionary(value) || (row->flag && !plain)) break;
        if (!row->flag || parts->known[row->data] == SURE || (parts->known[row->data] && made != none)) reads = SURE;
        break;
    case TYPE:
        if (!known) return 0;
        if (noted && (is_dictionary(value) || is_row_of_items(value) || is_plain_tensor(value))) return 1;
        if (known == SURE && is_constant(value)) return 1;
        add(memo, parts, TYPE_IS, base, (int64_t)value->type, 0, 0);
        return 1;
    case IS: return known;
    case IS_WEAKLY:
        if (!known || !row->flag || row->object->type != reference_class || !get_referent) return 0;
        add(memo, parts, REFERENT_IS, 0, (int64_t)row->object, (int64_t)value, 0);
        return 1;
    case SAME:
        parts->based[base] = parts->based[row->data] = 1;
        return known && parts->known[row->data];
    case TRUE:
        if (known && (value == none || value == yes || value == no)) return 1;
        return noted && (is_dictionary(value) || is_row_of_items(value));
    case EQUAL: return known == SURE && is_constant(value);
    case LENGTH: return noted && (is_dictionary(value) || is_row_of_items(value));
    case KEYS: case CONTAINS: return noted && value->type == dictionary;
    case IDENTITIES:  // of an ordered dictionary the order may change, and its version does not
        return noted && (is_row_of_items(value) || value->type == dictionary || value->type == default_class);
    case TENSOR: return noted && is_plain_tensor(value);
    case GRADIENT: return noted && plain && is_plain_tensor(value);
    case DISTINCT: return are_all_known(parts, listed);
    default: break;
    }
    if (row->operation < ASKED) {
        parts->known[row->to] = (uint8_t)reads;
        parts->seen[row->to] = made;
    }
    return reads;
}

static void need(Memo *memo, const Parts *parts, int64_t slot) {
    if (!parts->known[slot] || parts->is_needed[slot] || slot >= memo->slots) return;
    parts->is_needed[slot] = 1;
    parts->needed[memo->needs++] = (int32_t)slot;
}

static void note_after(
    const Table *table, Memo *memo, const Parts *parts, const Row *row, PyObject **slots, int plain
) {
    const int32_t number = (int32_t)(row - table->row);
    const int64_t *listed = (const int64_t *)((const char *)table + row->data);
    if (row->operation < ASKED) {
        parts->based[row->from] = 1;
        if (row->operation == FIELD || (row->operation == ENTRY && row->flag)) parts->based[row->data] = 1;
    }
    if (follows(table, memo, parts, row, slots, plain)) {
        const int64_t home = row->operation == FIELD ? row->data : row->from;
        if (is_slotless(row->operation)) return;
        if (parts->noted[home] && is_dictionary(slots[home])) {
            parts->following[number] = parts->first[home];
            parts->first[home] = number + 1;
        } else if (row->operation >= ASKED) {
            parts->following_ask[number] = parts->first_ask[home];
            parts->first_ask[home] = number + 1;
        }
        return;
    }
    parts->rest[memo->rests++] = number;
    if (!is_slotless(row->operation)) need(memo, parts, row->from);
    if (row->operation == FIELD || row->operation == SAME || row->operation == MEMBERS || row->operation == ENTRY)
        need(memo, parts, row->data);
    if (row->operation == DISTINCT || row->operation == APART)
        for (int64_t i = 0; i < listed[0]; ++i) need(memo, parts, listed[i + 1]);
}

static void begin_noting(const Table *table, Memo *memo, const Parts *parts, PyObject *const *arguments) {
    memo->entries = memo->rests = memo->needs = memo->used = memo->is_noted = memo->getters = 0;
    memo->tensors = memo->forms = 0;
    for (int64_t i = 0; i < memo->slots; ++i)
        parts->first[i] = parts->first_ask[i] = parts->record[i] =
            parts->known[i] = parts->noted[i] = parts->based[i] = parts->is_needed[i] = 0;
    for (int64_t i = 0; i < table->arguments; ++i) {
        parts->based[i] = 1;
        if (parts->loose[i]) continue;
        parts->known[i] = ALIVE;
        parts->seen[i] = arguments[i];
        add(memo, parts, ARGUMENT_IS, i, 0, 0, 0);
    }
}


// Note of tensors that are handed over in groups where they belong.
static void note_places(const Table *table, Memo *memo, const Parts *parts) {
    const int64_t *result = (const int64_t *)(table->row + table->rows);
    memo->is_placed = 1;
    for (int64_t i = 0; i < table->results; ++i, ++result) {
        if (*result >= 0) continue;
        const int64_t count = -*result++;
        for (int64_t at = 0; at < count; ++at, ++result) {
            const int32_t record = parts->known[*result] ? parts->record[*result] : 0;
            int32_t place = record ? place_of(i, at) : 0, *places = record ? parts->tensor[record - 1].places : 0;
            if (place && !places[0]) places[0] = place;
            else if (place && !places[1]) places[1] = place;
            else memo->is_placed = 0;
        }
        --result;
    }
}

static void end_noting(const Table *table, Memo *memo, const Parts *parts) {
    memo->is_noted = memo->entries <= memo->rows;
    note_places(table, memo, parts);
}

// A dictionary has changed: whether what was read from it is the same, or an object of which nothing was noted, a
// learning rate say. Rows about that are walked with the rest.
static int is_read_the_same(const Table *table, Memo *memo, const Parts *parts, Noted *entry, int64_t *rests) {
    PyObject **slots = parts->slots;
    PyObject *names = parts->seen[entry->slot];
    if (names->type != dictionary) return 0;
    const int64_t version = (int64_t)version_of_names(names);
    for (int32_t number = parts->first[entry->slot]; number; number = parts->following[number - 1]) {
        const Row *row = table->row + number - 1;
        PyObject *found = 0;
        switch (row->operation) {
        case ITEM: case FIELD:
            if (row->object->type != text) return 0;
            found = PyDict_GetItemWithError(names, row->object);
            // At the address of a number or a text that is gone there may be another one by now.
            if (found && found == parts->seen[row->to] && (!is_constant(found) || is_one_of_a_kind(found))) break;
            if (!found || parts->based[row->to] || !is_constant(found)) return 0;
            parts->seen[row->to] = found;
            if (parts->first_ask[row->to] && !slots[row->to]) { slots[row->to] = found; Py_IncRef(found); }
            for (int32_t ask = parts->first_ask[row->to]; ask; ask = parts->following_ask[ask - 1]) {
                if (*rests == memo->rows) return 0;
                parts->rest[(*rests)++] = ask - 1;
            }
            break;
        case TYPE: case IS: case IS_WEAKLY: case SAME: break;  // it is the same dictionary
        case CONTAINS:
            if (row->object->type != text) return 0;
            if ((PyDict_GetItemWithError(names, row->object) != 0) != row->flag) return 0;
            break;
        case TRUE: if ((PyDict_Size(names) != 0) != row->flag) return 0; break;
        case LENGTH: if (PyDict_Size(names) != row->data) return 0; break;
        case KEYS: {
            PyObject *key, *value;
            int64_t position = 0, seen = 0;
            if (PyDict_Size(names) != row->data) return 0;
            while (PyDict_Next(names, &position, &key, &value) && key == PyTuple_GetItem(row->object, seen)) ++seen;
            if (seen != row->data) return 0;
            break;
        }
        default: return 0;
        }
    }
    entry->a = version;
    return 1;
}

// Weak references keep the address of what they refer to where it is found at once, or are asked.
static PyObject *referent_of(PyObject *reference) {
    if (!referent_word) return get_referent(reference);
    PyObject *referent = *(PyObject **)((char *)reference + referent_word);
    return referent->references > 0 ? referent : none;  // one that is just going is there no more
}

static int is_same(const Table *table, Memo *memo, const Parts *parts, PyObject *const *arguments, int64_t *rests) {
    Noted *entry = parts->entry, *end = entry + memo->entries;
    PyObject **seen = parts->seen;
    for (; entry < end; ++entry) {
        PyObject *value = seen[entry->slot], *found;
        if (entry + AHEAD < end) {
            const Noted *later = entry + AHEAD;
            __builtin_prefetch(later->kind == REFERENT_IS ? (PyObject *)later->a : seen[later->slot]);
        }
        switch (entry->kind) {
        case ARGUMENT_IS:
            if (arguments[entry->slot] == value) continue;
            parts->loose[entry->slot] = 1;
            return 0;
        case TYPE_IS: if ((int64_t)value->type != entry->a) return 0; continue;
        case VERSION_IS:
            if ((int64_t)value->type != entry->b) return 0;
            if (version_of_names(value) == (uint64_t)entry->a) continue;
            if (!is_read_the_same(table, memo, parts, entry, rests)) return 0;
            continue;
        case ITEMS_ARE: if (!are_items_same(value, entry, parts->room + entry->a)) return 0; continue;
        case TENSOR_IS:
            if (!is_tensor_same(parts->tensor + entry->a, parts->forms)) return 0;
            continue;
        case WORD_IS: if (*(int64_t *)((char *)value + entry->a) != entry->b) return 0; continue;
        case REFERENT_IS: if ((int64_t)referent_of((PyObject *)entry->a) != entry->b) return 0; continue;
        case CLASS_HAS:
            if ((int64_t)_PyType_Lookup((PyObject *)entry->a, (PyObject *)entry->b) != entry->c) return 0;
            continue;
        }
        // A function's or a cell's attribute, or the dictionary of an instance.
        if ((int64_t)value->type != entry->c) return 0;
        if (entry->kind == DICTIONARY_IS && dictionary_of) {
            PyObject **names = dictionary_of(value);
            if (!names || (int64_t)*names != entry->b) return 0;
            continue;
        }
        found = entry->kind == GETS ? PyObject_GetAttr(value, (PyObject *)entry->a) : PyObject_GenericGetDict(value, 0);
        if (!found) { PyErr_Clear(); return 0; }
        Py_DecRef(found);
        if ((int64_t)found != entry->b) return 0;
    }
    return 1;
}
"""
