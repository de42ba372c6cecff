"""Attributes that a call stores and deletes: the next object may have had them, or not, and remembers their order."""

import functools
import types

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways


class Thing:
    pass


class Slotted:
    __slots__ = ("a",)


class Module(torch.nn.Module):
    pass


def function():
    pass


HOLDERS = {
    "an object": Thing,
    "a module": Module,
    "a function": lambda: types.FunctionType(function.__code__, globals()),
    "a partial": lambda: functools.partial(max),
    "a tensor": lambda: torch.ones(2),
    "a namespace": types.SimpleNamespace,
    "an exception": lambda: ValueError("text"),
}
SEQUENCES = {
    "stored, deleted": "store delete",
    "stored, deleted, stored": "store delete store",
    "stored, deleted twice": "store delete store delete",
    "deleted": "delete",
    "deleted, stored": "delete store",
    "deleted behind another": "other delete store",
    "stored before another": "store other delete store",
}
STEPS = {
    "store": "thing.a = 1",
    "other": "thing.z = 2",
    "delete": "try:\n        del thing.a\n    except AttributeError as error:\n        said.append(str(error))",
}


def program_of(sequence):
    body = "\n    ".join(STEPS[step] for step in sequence.split())
    space = {}
    exec(f"def program(x, thing):\n    said = []\n    {body}\n    return x + 1, said\n", space)
    return space["program"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", ["absent first", "present first"])
@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_left_of_them(holder, sequence, order, backend):
    def observe(function, is_there):
        thing = HOLDERS[holder]()
        thing.k = 7
        if is_there:
            thing.a, thing.m = 5, 8
        result, said = function(torch.ones(2), thing)
        return {"result": result, "said": said, "held": [pair for pair in vars(thing).items() if pair[0] in "akmz"]}

    calls = [order == "present first", order == "absent first"] * 2
    agree(program_of(SEQUENCES[sequence]), observe, *calls, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sequence", ["store delete", "store delete store", "delete", "delete store"])
def test_slots(sequence, backend):
    def observe(function, is_there):
        thing = Slotted()
        if is_there:
            thing.a = 5
        result, said = function(torch.ones(2), thing)
        return {"result": result, "said": said, "held": getattr(thing, "a", None)}

    agree(program_of(sequence), observe, False, True, False, True, backend=backend)
    agree(program_of(sequence), observe, True, False, True, False, backend=backend)


def test_the_same_again_is_one_program():
    def observe(function, thing):
        return {"result": function(torch.ones(2), thing), "held": dict(vars(thing))}

    agree(program_of("store delete store"), observe, Thing(), Thing(), programs=1)
    with_one = [torch.ones(2) for _ in range(2)]
    for tensor in with_one:
        tensor.a = 1
    agree(
        program_of("store delete"),
        observe,
        with_one[0],
        with_one[1],
        reset=lambda: [setattr(t, "a", 1) for t in with_one],
        programs=1,
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_a_function_has_deleted_of_a_tensor_is_gone_without_a_break(backend):
    def function(x):
        before = getattr(x, "tag", None)
        try:
            del x.tag
        except AttributeError as error:
            return x * 2, before, str(error)
        return x * 3, before, hasattr(x, "tag"), getattr(x, "tag", 7)

    def tagged(has_tag):
        x = torch.ones(3)
        if has_tag:
            x.tag = 5
        return x

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for has_tag in (True, True, False, False, True):
        x, y = tagged(has_tag), tagged(has_tag)
        (expected, *facts), (result, *found) = function(x), compiled(y)
        assert torch.equal(result, expected) and found == facts and vars(x) == vars(y) == {}
    assert len(bothways.history(compiled)) == 2
