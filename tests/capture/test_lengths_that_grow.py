"""How many things a container of the caller's holds, when it is another number at each call: two or three programs do.

Of a replay buffer the step asks for nothing but the length until there is enough in it.
"""

from collections import OrderedDict, defaultdict, deque

import pytest
import torch
from agreeing import agree

import bothways


class Buffer:
    def __init__(self, kind):
        self.items = kind()

    def __len__(self):
        return len(self.items)


class Own(list):
    pass


class Modules(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = []

    def __len__(self):
        return len(self.items)


def put(holder, number):
    items = getattr(holder, "items", holder) if isinstance(holder, (Buffer, Modules)) else holder
    if isinstance(items, dict):
        items[f"step {number}"] = number
    elif isinstance(items, set):
        items.add(number)
    else:
        items.append(number)


KINDS = {
    "list": list, "own list": Own, "deque": deque, "dict": dict, "ordered": OrderedDict,
    "defaultdict": lambda: defaultdict(int), "set": set, "buffer": lambda: Buffer(list),
    "buffer of a deque": lambda: Buffer(lambda: deque(maxlen=100)), "buffer of a dict": lambda: Buffer(dict),
    "module": Modules,
}  # fmt: skip


def enough(holder, x):
    return x * 2 if len(holder) >= 8 else x


def scaled(holder, x):
    return x * len(holder)


def filled(holder, x):
    return x * 2 if holder else x


def observing(make):
    """Each side has a container of its own, into which something is put before each call."""
    holders = {}

    def observe(function, number):
        holder = holders.setdefault(function, make())
        if number:
            put(holder, number)
        return {"result": function(holder, torch.ones(3))}

    return observe


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("program", "programs"), [(enough, 3), (scaled, 3), (filled, 2)])
def test_a_length_that_grows_is_a_number(name, program, programs):
    if program is filled and name in ("module", "own list"):
        programs = 3  # the one has hooks that are looked at first, the other is of a class of its own
    compiled = agree(program, observing(KINDS[name]), *range(14), fullgraph=True)
    assert len(bothways.history(compiled)) <= programs


def test_what_the_call_adds_and_takes_away_is_counted():
    def program(d, s, key, x):
        d["new"] = 1
        d.pop("old", None)
        s.add("new")
        return x * len(d) + len(s)

    def observe(function, count):
        d = dict.fromkeys([f"key {number}" for number in range(count)] + ["old"] * (count % 2), 0)
        s = {f"element {number}" for number in range(count)} | ({"new"} if count % 3 == 0 else set())
        return {"result": function(d, s, "key", torch.ones(2)), "dict": d, "set": s}

    agree(program, observe, *range(3, 12))


def test_a_length_that_is_none_raises_as_in_python():
    class Negative:
        size = 0

        def __len__(self):
            return self.size - 3

    holder = Negative()

    def observe(function, size):
        holder.size = size
        try:
            return {"result": function(holder, torch.ones(2))}
        except ValueError as error:
            return {"error": str(error)}

    agree(lambda holder, x: x * len(holder), observe, 3, 5, 7, 2, 1, 9)


def test_tensors_that_a_log_keeps_are_for_python_where_all_are_gone_through():
    log = []

    def program(x):
        log.append(x * 2)
        return torch.stack(list(log)).sum() + torch.stack(log).mean()

    def observe(function, number):
        return {"result": function(torch.full((2,), float(number)))}

    compiled = agree(program, observe, *range(12), reset=log.clear)
    assert not bothways.explain(compiled).plain_from_now_on


def test_a_list_of_several_lengths_is_captured_whole_where_that_is_asked_for():
    def observe(function, count):
        return {"result": function([torch.ones(2) * number for number in range(count)])}

    agree(lambda parts: sum(part.sum() for part in parts), observe, *range(1, 8), fullgraph=True)


def test_a_length_that_stays_follows_from_what_is_looked_at_of_the_keys():
    def program(state, x):
        return x * len(state)

    compiled = agree(program, lambda function, x: {"result": function({"step": 1, "rate": 2}, x)}, *[torch.ones(2)] * 3)
    checks = [check.text for check in compiled.__bothways__.dispatcher.programs[-1].checks]
    assert any("state" in text for text in checks) and not any("len(L['state'])" in text for text in checks)
