"""The C that recognises the tensors a table of guards has read before: one pass, in which each is looked at once.

For each tensor there is a record of two cache lines: its address, the words of its ``TensorImpl`` that are its own, and
where the others are, which most tensors of a model share. A record also says which memory will be looked at next, so
that it is fetched ahead; such memory is never read before it is known to be there.
"""

from __future__ import annotations

KNOWN_TENSOR = 16  # words of a record

KNOWN_TYPES = """\
enum { OWN = 8, AHEAD = 8 };  // so many tensors before it is looked at, memory is fetched: a step's fill the caches
enum { LOOKED_THROUGH = 64 };  // forms that a tensor may have
enum { HAS_NO_HOOKS = 1, HAS_NO_LATE_HOOKS = 2, MAY_NEED_GRADIENT = 4 };
// ``places``: where it is handed over, as numbers of a result and of an item in it; see ``place_of``.
typedef struct {
    PyObject *value, *type;
    int64_t impl, data, size, form;
    int32_t needs_gradient, asks, places[2];
    int64_t own[OWN];
} KnownTensor;
"""

KNOWN_TENSORS = """\
typedef int64_t Words __attribute__((vector_size(8 * OWN)));

// The second word counts who holds it, which is no matter.
static const Words compared = {-1, 0, -1, -1, -1, -1, -1, -1};

static inline Words words_at(const void *place) {
    Words words;
    __builtin_memcpy(&words, place, sizeof words);
    return words;
}

static inline int is_nothing(Words words) {
    int64_t any = 0;
    for (int64_t i = 0; i < OWN; ++i) any |= words[i];
    return !any;
}

static PyObject **items_of(PyObject *owner) { return (PyObject **)((char *)owner + tuple_items); }

static char *storage_of(const char *impl) { return *(char **)(impl + storage_word); }

// Where the words are that a tensor may share with others: ``forms`` has ``room``, of which so much is used.
static int64_t form_of(const int64_t *impl, int64_t *forms, int64_t *used, int64_t room) {
    const int64_t length = tensor_length / 8 - OWN;
    const int64_t last = *used - length, first = last - LOOKED_THROUGH * length;
    for (int64_t form = last; form >= 0 && form > first; form -= length) {
        int64_t differs = 0;
        for (int64_t i = 0; i < length; ++i) differs |= forms[form + i] ^ impl[OWN + i];
        if (!differs) return form;
    }
    if (*used + length > room) return -1;
    for (int64_t i = 0; i < length; ++i) forms[*used + i] = impl[OWN + i];
    *used += length;
    return *used - length;
}

static int know_tensor(PyObject *value, KnownTensor *known, int64_t *forms, int64_t *used, int64_t room) {
    int64_t dimensions;
    if (tensor_length < 16 * OWN || !storage_word || storage_word >= 8 * OWN || !needs_gradient) return 0;
    const int64_t *impl = *(int64_t **)((char *)value + tensor_offset);
    const char *storage = storage_of((const char *)impl);
    if (!storage || aoti_torch_get_dim((char *)value + tensor_offset, &dimensions) || dimensions > 5) return 0;
    known->form = form_of(impl, forms, used, room);
    if (known->form < 0) return 0;
    known->value = value;
    known->type = value->type;
    known->impl = (int64_t)impl;
    known->data = *(int64_t *)(storage + data_word);
    known->size = *(int64_t *)(storage + size_word);
    known->needs_gradient = needs_gradient(impl);
    // Without anything of autograd's it needs none.
    known->asks = history_word && !impl[history_word / 8] ? 0 : MAY_NEED_GRADIENT;
    known->places[0] = known->places[1] = 0;
    for (int64_t i = 0; i < OWN; ++i) known->own[i] = impl[i];
    return 1;
}

// Whether a tensor may be the same; it is, if nothing in ``differ`` is set besides.
static inline int may_be_same(const KnownTensor *known, const int64_t *forms, int64_t length, Words *differ) {
    const char *value = (const char *)known->value;
    const int64_t *impl = *(int64_t **)(value + tensor_offset), *form = forms + known->form;
    if (known->value->type != known->type || (int64_t)impl != known->impl) return 0;
    const char *storage = storage_of((const char *)impl);
    if ((int64_t)storage != known->own[storage_word / 8]) return 0;
    *differ |= (words_at(impl) ^ words_at(known->own)) & compared;
    for (int64_t i = 0; i < length - OWN; i += OWN) *differ |= words_at(impl + OWN + i) ^ words_at(form + i);
    *differ |= words_at(impl + length) ^ words_at(form + length - OWN);
    int64_t differs = *(int64_t *)(storage + data_word) ^ known->data;
    differs |= *(int64_t *)(storage + size_word) ^ known->size;
    if (known->asks & HAS_NO_HOOKS) differs |= *(int64_t *)(value + hooks_word);
    if (known->asks & HAS_NO_LATE_HOOKS) differs |= *(int64_t *)(value + late_hooks_word);
    if (known->asks & MAY_NEED_GRADIENT) differs |= needs_gradient(impl) ^ known->needs_gradient;
    return !differs;
}

static int is_tensor_same(const KnownTensor *known, const int64_t *forms) {
    Words differ = {0};
    return may_be_same(known, forms, tensor_length / 8 - OWN, &differ) && is_nothing(differ);
}

static inline void fetch(const KnownTensor *known) {
    __builtin_prefetch(known->value, 1);
    __builtin_prefetch((const char *)known->impl);
    __builtin_prefetch((const char *)known->impl + 64);
    __builtin_prefetch((const char *)known->impl + 128);
    __builtin_prefetch((const char *)known->own[storage_word / 8] + data_word);
}

// A place in what a table hands over; 0 where it has no number.
enum { ITEM_BITS = 22, MOST_ITEMS = 1 << ITEM_BITS, MOST_RESULTS = 1 << (30 - ITEM_BITS) };

static int32_t place_of(int64_t result, int64_t item) {
    return result < MOST_RESULTS && item < MOST_ITEMS ? (int32_t)((result << ITEM_BITS | item) + 1) : 0;
}

static inline void hand_over(PyObject *answer, int32_t place, PyObject *value) {
    if (!place) return;
    PyObject *into = items_of(answer)[(place - 1) >> ITEM_BITS];
    ++value->references;
    items_of(into)[(place - 1) & (MOST_ITEMS - 1)] = value;
}

// Whether all are the same; each is held by the answer, where it belongs to it, as soon as it was looked at.
static int are_tensors_same(const KnownTensor *known, int64_t count, const int64_t *forms, PyObject *answer) {
    const int64_t length = tensor_length / 8 - OWN;
    Words differ = {0};
    for (const KnownTensor *end = known + count; known < end; ++known) {
        if (known + AHEAD < end) fetch(known + AHEAD);
        if (!may_be_same(known, forms, length, &differ)) return 0;
        if (!answer) continue;
        hand_over(answer, known->places[0], known->value);
        hand_over(answer, known->places[1], known->value);
    }
    return is_nothing(differ);
}
"""
