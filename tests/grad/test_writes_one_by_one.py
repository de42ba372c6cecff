"""Writes that go by the order of elements: random numbers into memory with gaps, a tensor twice in a list, elements
that are moved within one memory."""

import operator

import pytest
import torch
from agreeing import agree

PLACES = {
    "a diagonal": lambda a: a.diagonal(),
    "a column": lambda a: a[..., 1],
    "every other row": lambda a: a[::2],
    "a row": lambda a: a[1],
    "turned": lambda a: a.transpose(0, -1),
    "a turned part": lambda a: a[:, :1].transpose(0, 1),
}
FILLING = {"bernoulli_": (0.5,), "normal_": (), "uniform_": (), "random_": (), "exponential_": (), "geometric_": (0.5,)}
backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


@backends
@pytest.mark.parametrize("fill", FILLING)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_random_numbers_in_a_part_of_memory(place, fill, backend):
    def filled(a):
        b = a * 2
        getattr(place(b), fill)(*FILLING[fill])
        getattr(place(a), fill)(*FILLING[fill])
        return a + b, torch.rand(2)

    def observe(function, call):
        torch.manual_seed(call)
        a = torch.zeros(17, 2, 3)
        return {"result": function(a), "a": a}

    agree(filled, observe, 1, 1, 2, backend=backend, programs=1, fullgraph=True)


def one_twice(a, b):
    middle = a.median()
    torch._foreach_add_([middle, middle], -2)
    return middle, torch.stack([middle, middle])


def views_of_one(a, b):
    torch._foreach_mul_([a[0], b, a[0]], 2)
    return a + b


def overlapping(a, b):
    torch._foreach_add_([a[:2], a[1:]], 2)
    return a + b


def an_input_twice(a, b):
    torch._foreach_copy_([a, a], [b, b + 1])
    return a + 1


def apart(a, b):
    torch._foreach_add_([*a.unbind(0), b], 2)
    return a + b


@backends
@pytest.mark.parametrize(
    "program", [one_twice, views_of_one, overlapping, an_input_twice, apart], ids=operator.attrgetter("__name__")
)
def test_a_list_in_which_a_tensor_is_twice(program, backend):
    def observe(function, call):
        torch.manual_seed(call)
        a, b = torch.rand(3, 3), torch.rand(3, 3)
        return {"result": function(a, b), "a": a, "b": b}

    agree(program, observe, 1, 1, 2, backend=backend, fullgraph=program is apart)


INDEX, MASK = torch.tensor([0, 2, 1, 3]), torch.tensor([False, True, True, True])
MOVING = {
    "masked_scatter_": lambda a, b: a.masked_scatter_(MASK, b),
    "scatter_": lambda a, b: a.scatter_(0, INDEX, b),
    "scatter_add_": lambda a, b: a.scatter_add_(0, INDEX, b),
    "scatter_reduce_": lambda a, b: a.scatter_reduce_(0, INDEX, b, "amax"),
    "index_copy_": lambda a, b: a.index_copy_(0, INDEX, b),
    "index_add_": lambda a, b: a.index_add_(0, INDEX, source=b),
    "index_reduce_": lambda a, b: a.index_reduce_(0, INDEX, b, "prod"),
    "index_put_": lambda a, b: a.index_put_((INDEX,), b, accumulate=True),
    "put_": lambda a, b: a.put_(INDEX, b),
    "by an index": lambda a, b: operator.setitem(a, INDEX, b),
    "by a mask": lambda a, b: operator.setitem(a, MASK, b[:3]),
    "taken": lambda a, b: torch.take(b, INDEX, out=a),
    "gathered": lambda a, b: torch.gather(b, 0, INDEX, out=a),
    "a product": lambda a, b: torch.mv(torch.ones(4, 4), b, out=a),
}
IN_PLACE = {
    "added": lambda a, b: a.add_(b),
    "copied": lambda a, b: a.copy_(b),
    "multiplied": lambda a, b: a.multiply_(b),
    "chosen": lambda a, b: torch.where(MASK, b, a, out=a),
    "a part of it": lambda a, b: operator.setitem(a, slice(1, 3), operator.iadd(a[1:3], 1)),
    "turned": lambda a, b: a.copy_(b.flip(0)),
}
VIEWS = {"itself": lambda a: a, "a part that is all": lambda a: a[:], "detached": lambda a: a.detach()}


@backends
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("move", [*MOVING.values(), *IN_PLACE.values()], ids=[*MOVING, *IN_PLACE])
def test_what_is_moved_within_one_memory(move, view, backend):
    """Eager refuses it, or reads what it has written before; what stays at its place is part of the graph."""

    def program(a):
        try:
            move(view(a), a)
        except RuntimeError:
            return a - 1
        return a * 2

    def observe(function, call):
        a = torch.arange(4.0) + call
        return {"result": function(a), "a": a}

    agree(program, observe, 1, 1, 2, backend=backend, fullgraph=move in IN_PLACE.values())
