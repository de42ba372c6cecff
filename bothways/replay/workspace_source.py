"""C that takes the memory of one stream out of a table of PyTorch's, which itself empties all of it or nothing.

The table is a ``std::map`` as libstdc++ lays it out, with a ``std::shared_mutex`` behind it; the keys are a handle and
a stream, and an entry owns its memory. It is changed under that lock, in one call: Python, which may give way to
another thread anywhere, must not hold a lock that one which holds Python's own may wait for.
"""

from __future__ import annotations

# What libstdc++ has for trees of any kind: the next node in order, and a tree without a node.
NEXT = "_ZSt18_Rb_tree_incrementPSt18_Rb_tree_node_base"
TAKE_OUT = "_ZSt28_Rb_tree_rebalance_for_erasePSt18_Rb_tree_node_baseRS_"
DELETE = "_ZdlPv"

TEXT = """\
#include <pthread.h>
#include <stddef.h>

typedef struct Node { int colour; struct Node *above, *left, *right; } Node;
typedef struct { Node node; void *stream, *handle, *memory; void (*release)(void *); void *owner; short device; } Entry;
typedef struct { void *order; Node ends; size_t count; pthread_rwlock_t lock; } Table;

int forget_stream(
    Table *table, void *stream, Node *(*next)(Node *), Node *(*take_out)(Node *, Node *), void (*delete)(void *)
) {
    Node *gone = NULL, *after;
    int count = 0;
    if (pthread_rwlock_wrlock(&table->lock)) return -1;
    for (Node *node = table->ends.left; node != &table->ends; node = after) {
        after = next(node);
        if (((Entry *)node)->stream != stream) continue;
        take_out(node, &table->ends);
        --table->count;
        node->above = gone;
        gone = node;
    }
    pthread_rwlock_unlock(&table->lock);
    for (; gone; gone = after, ++count) {
        Entry *entry = (Entry *)gone;
        after = gone->above;
        if (entry->owner) entry->release(entry->owner);
        delete(entry);
    }
    return count;
}
"""
