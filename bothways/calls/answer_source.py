"""The C of a check that finds everything as it was remembered, and fills the tuple that a table hands over.

The tuple is made before anything is looked at, and holds each object as soon as it is put in: nothing may run between.
"""

from __future__ import annotations

ANSWER = """\
static void let_go(PyObject **slots, int64_t slot, int64_t arguments) {
    if (slot < arguments || !slots[slot]) return;
    Py_DecRef(slots[slot]);
    slots[slot] = 0;
}

// What a table hands over, still to be filled: one object for each slot, and a tuple for each group of them. A group is
// written as minus its length, before its slots.
static PyObject *empty_answer(const Table *table) {
    const int64_t *result = (const int64_t *)(table->row + table->rows);
    PyObject *answer = table->results ? PyTuple_New(table->results) : yes, *group;
    if (answer == yes) Py_IncRef(yes);
    for (int64_t i = 0; answer && i < table->results; ++i, ++result) {
        if (*result >= 0) continue;
        if ((group = PyTuple_New(-*result))) PyTuple_SetItem(answer, i, group);
        else { Py_DecRef(answer); answer = 0; }
        result -= *result;
    }
    return answer;
}

// Fill in what is, or is not, known; all of it, where nothing is. Groups may be full already, and have items that are.
static void fill(
    const Table *table, PyObject *answer, PyObject **values, const uint8_t *known, int wanted, int64_t are_full
) {
    const int64_t *result = (const int64_t *)(table->row + table->rows);
    for (int64_t i = 0; i < table->results; ++i, ++result) {
        PyObject *into = answer;
        int64_t at = i, end = i + 1;
        if (*result < 0) { into = items_of(answer)[i]; at = 0; end = -*result++; }
        if (into != answer && are_full) { result += end - 1; continue; }
        for (; at < end; ++at, ++result)
            if ((into == answer || !items_of(into)[at]) && (!known || (known[*result] != 0) == wanted))
                put(into, at, values[*result]);
        --result;
    }
}

// What a guard reads is not there: the guard fails. Whatever else is raised is none of our business.
static PyObject *refused(int holds) {
    if (holds < 0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(exception)) return 0;
        PyErr_Clear();
    }
    Py_IncRef(no);
    return no;
}

// The answer of a check in which all that was noted is the same; 0 where it is not, and all rows have to be walked.
static int check_again(const Table *table, Memo *memo, PyObject *const *arguments, PyObject **answer) {
    const Parts parts = parts_of(memo);
    PyObject **slots = parts.slots;
    int64_t rests = memo->rests;
    int plain = 1, holds = 1, same = 1;
    for (int64_t i = 0; i < table->arguments; ++i) slots[i] = arguments[i];
    // Made before anything is looked at: memory that is asked for may let the collector run, and finalizers let go of
    // what was seen. What is handed over is held before anything else runs.
    PyObject *made = empty_answer(table);
    if (is_same(table, memo, &parts, arguments, &rests) &&
        are_tensors_same(parts.tensor, memo->tensors, parts.forms, table->results ? made : 0)) {
        if (made) fill(table, made, parts.seen, parts.known, 1, memo->is_placed);
        for (int64_t i = 0; i < memo->needs; ++i) {
            const int32_t slot = parts.needed[i];
            if (slot < table->arguments || slots[slot]) continue;
            slots[slot] = parts.seen[slot];
            Py_IncRef(slots[slot]);
        }
        for (int64_t i = 0; i < rests && holds == 1 && plain; ++i)
            holds = walk(table, table->row + parts.rest[i], slots, &plain);
        same = plain;
        if (same) *answer = holds == 1 ? made : refused(holds);
        if (made && same && holds == 1) fill(table, made, slots, parts.known, 0, memo->is_placed);
        else if (made) Py_DecRef(made);
    } else {
        same = 0;
        if (made) Py_DecRef(made);
    }
    for (int64_t i = 0; i < memo->needs; ++i) let_go(slots, parts.needed[i], table->arguments);
    for (int64_t i = 0; i < rests; ++i) {
        const Row *row = table->row + parts.rest[i];
        let_go(slots, row->operation < ASKED ? row->to : row->from, table->arguments);
    }
    // Something else was read from a dictionary, and nothing is known of it yet.
    if (rests != memo->rests && (!same || holds != 1)) memo->is_noted = 0;
    return same;
}
"""
