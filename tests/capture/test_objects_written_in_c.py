"""Objects of classes that are written in C: where they keep attributes, when they are equal, what Python calls them."""

import array
import collections
import contextlib
import threading
import types
import weakref

import pytest
import torch
from agreeing import BACKENDS, agree


class Thing:
    def __init__(self, n=1):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __hash__(self):
        return hash(self.n)


class Local(threading.local):
    def __init__(self):
        self.n = 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [threading.local, Local])
def test_attributes_of_a_thread_are_stored_and_deleted(kind, backend):
    def program(x, local):
        try:
            local.n += 1
            local.m = x * 2
            del local.n
        except AttributeError as error:
            return x, str(error)
        return x + 1, sorted(vars(local))

    def observe(function, n):
        local = kind()
        local.n = n
        result = function(torch.ones(2), local)
        return {"result": result, "held": dict(vars(local))}

    agree(program, observe, 1, 1, 2, backend=backend)


class Depth(threading.local):
    name = "depth"

    def __init__(self, depth=0):
        self.depth, self.seen = depth, []

    @property
    def doubled(self):
        return self.depth * 2

    @contextlib.contextmanager
    def deeper(self):
        self.depth += 1
        try:
            yield self
        finally:
            self.depth -= 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_thread_keeps_is_read_and_stored_in_one_graph(backend):
    def program(x, state):
        with state.deeper() as inner:
            x = x * inner.doubled
            inner.seen.append(inner.depth)
        state.last = x.sum()
        state.name = "other"
        setattr(state, "of this step", x.shape[0])
        if hasattr(state, "first"):
            del state.first
        else:
            state.first = x
        return x + 1

    def observe(function, size):
        results = []

        def steps():
            shown = []
            for _ in range(3):
                result = function(torch.ones(size), state)
                shown.append((result, sorted(vars(state).items(), key=str), state.depth))
            results.append(shown)

        state = Depth()
        steps()
        state.depth = 2
        steps()
        thread = threading.Thread(target=steps)
        thread.start()
        thread.join()
        return {"results": results, "here": sorted(vars(state)), "class": Depth.name}

    agree(program, observe, 2, 2, 3, backend=backend, fullgraph=True)


def test_what_a_thread_does_not_keep_raises_as_plain_python():
    def program(x, state):
        try:
            del state.missing
        except AttributeError as error:
            return x, str(error)
        return x + 1

    def sets_what_is_computed(x, state):
        try:
            state.doubled = 3
        except AttributeError as error:
            return x, str(error)
        return x + 1

    for one in (program, sets_what_is_computed):
        agree(one, lambda function, call: {"result": function(torch.ones(2), Depth())}, 0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weak_references_are_equal_where_what_they_lead_to_is(backend):
    one, like_it, other = Thing(), Thing(), Thing(2)
    to_one, to_other = weakref.ref(one), weakref.ref(other)

    def program(x):
        made = weakref.ref(one)
        found = [
            made == to_one,
            made != weakref.ref(like_it),
            made == to_other,
            made is weakref.ref(one),
            made in [to_one],
        ]
        return x + 1, found, to_one == to_other, to_one == weakref.ref(like_it)

    agree(program, lambda function, x: {"result": function(x)}, torch.ones(2), torch.ones(2), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_method_of_a_list_is_found_by_the_list(backend):
    held = [1]

    def program(x, one, other):
        return x + 1, one in {other}, {one: 2}.get(other)

    def observe(function, call):
        return {"result": function(torch.ones(2), *call)}

    agree(
        program,
        observe,
        (held.append, held.append),
        (held.append, held.append),
        (held.append, held.pop),
        backend=backend,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["shape", "requires_grad", "grad", "nothing"])
def test_fields_of_tensors_are_deleted_as_python_does(name, backend):
    space = {}
    body = f"try:\n        del x.{name}\n    except (AttributeError, RuntimeError) as error:\n        said = str(error)"
    exec(f"def program(x):\n    said, y = None, x * 2\n    {body}\n    return y, said\n", space)

    def observe(function, call):
        x = torch.ones(2)
        return {"result": function(x), "grad": x.grad}

    agree(space["program"], observe, 1, 2, backend=backend)


COMPLAINTS = [
    "collections.deque().nothing",
    "torch.Size([1]).nothing",
    "array.array('i').x = 1",
    "torch.Size([1]).x = 1",
    "hash(types.SimpleNamespace())",
    "hash(collections.OrderedDict())",
    "collections.OrderedDict() < collections.OrderedDict()",
    "types.SimpleNamespace()[0]",
    "len(types.SimpleNamespace())",
    "{}[collections.deque()]",
    "torch.float32()",
    "3 in torch.float32",
    "-collections.deque()",
]


@pytest.mark.parametrize("statement", COMPLAINTS)
def test_names_of_classes_in_what_python_says(statement):
    space = {"collections": collections, "torch": torch, "array": array, "types": types}
    body = f"try:\n        {statement}\n    except (AttributeError, TypeError) as error:\n        said = str(error)"
    exec(f"def program(x):\n    said, y = None, x * 2\n    {body}\n    return y, said\n", space)
    agree(space["program"], lambda function, x: {"result": function(x)}, torch.ones(2), torch.ones(2))
