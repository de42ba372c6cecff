"""A break inside a loop: graphs before it, in every turn and after it, whatever the loop goes over.

The iterator goes over the break as the live object at its place: what happens to the container afterwards, the order
of what the user's code does, and the end of the loop are those of plain Python.
"""

import collections
import contextlib
import functools
import itertools
import operator
import types

import pytest
import torch
from agreeing import assert_same

import bothways
from bothways.testing import CompileCounterWithBackend, difference

BACKENDS = ["eager", "aot_eager", "native"]
LOG = []


@bothways.disable
def note(*what):
    """Something that cannot be captured; what it was given, in order, can be compared."""
    LOG.append(tuple(item.detach().clone() if isinstance(item, torch.Tensor) else item for item in what))


def observed(run, *args):
    """The result or the exception, the arguments afterwards, and what was noted."""
    LOG.clear()
    try:
        result = run(*args)
    except Exception as error:
        result = type(error), str(error)
    return {"result": result, "arguments afterwards": args, "noted": list(LOG)}


def agrees(function, make_args, backend="eager", *, graphs=None, again=True):
    """Plain and compiled do the same, at the first call, at later ones, and with other numbers; gives the graphs."""
    counter = CompileCounterWithBackend(backend)
    compiled = bothways.compile(function, backend=counter)
    counts = []
    for seed in (0, 0, 0, 1):
        arguments = []
        for _ in range(2):
            torch.manual_seed(seed)
            arguments.append(make_args())
        expected, found = observed(function, *arguments[0]), observed(compiled, *arguments[1])
        assert_same(expected, found, f"call {len(counts) + 1}, backend {backend}")
        counts.append(counter.frame_count)
    # At the second call a number that changes from turn to turn is known to do so.
    assert not again or counts[2] == counts[1], "what was compiled is used again"
    assert graphs is None or counts[0] == graphs, counts
    return counts[0]


# What loops go over: from a container of numbers to an iterable.

NUMBERS = [1.5, 2.5, 3.5, 4.5]


class Countdown:
    """An iterator of the user's own."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n + 0.5


class Lines:
    """Something like a file: each turn reads."""

    def __init__(self):
        self.rest = "1 2\n3\n4 5\n"

    def __iter__(self):
        return iter(self.readline, "")

    def readline(self):
        line, _, self.rest = self.rest.partition("\n")
        return line


class ByIndex:
    def __getitem__(self, index):
        return NUMBERS[index]

    def __len__(self):
        return len(NUMBERS)


class OwnList(list):
    pass


class OwnDict(dict):
    def __iter__(self):
        return super().__iter__()


def generated(numbers):
    for number in numbers:
        yield number
        yield number + 1


def delegated(numbers):
    yield 0.5
    yield from generated(numbers)
    return "end"


def table():
    return {"a": 1.5, "b": 2.5, "c": 3.5}


ITERABLES = {
    "list": lambda: list(NUMBERS),
    "list subclass": lambda: OwnList(NUMBERS),
    "tuple": lambda: tuple(NUMBERS),
    "str": lambda: "abc",
    "bytes": lambda: b"abc",
    "range": lambda: range(2, 11, 3),
    "set": lambda: {1.5, 2.5, 3.5},
    "frozenset": lambda: frozenset({1.5, 2.5, 3.5}),
    "deque": lambda: collections.deque(NUMBERS),
    "dict": table,
    "dict.keys": lambda: table().keys(),
    "dict.values": lambda: table().values(),
    "dict.items": lambda: table().items(),
    "dict subclass": lambda: OwnDict(table()),
    "OrderedDict": lambda: collections.OrderedDict(table()),
    "OrderedDict.items": lambda: collections.OrderedDict(table()).items(),
    "defaultdict.values": lambda: collections.defaultdict(int, table()).values(),
    "mappingproxy": lambda: types.MappingProxyType(table()).items(),
    "vars": lambda: vars(types.SimpleNamespace(**table())).items(),
    "reversed list": lambda: reversed(list(NUMBERS)),
    "reversed tuple": lambda: reversed(tuple(NUMBERS)),
    "reversed range": lambda: reversed(range(4)),
    "reversed str": lambda: reversed("abc"),
    "reversed dict": lambda: reversed(table()),
    "reversed values": lambda: reversed(table().values()),
    "reversed items": lambda: reversed(table().items()),
    "reversed OrderedDict": lambda: reversed(collections.OrderedDict(table())),
    "reversed deque": lambda: reversed(collections.deque(NUMBERS)),
    "reversed by index": lambda: reversed(ByIndex()),
    "by index": lambda: ByIndex(),
    "enumerate": lambda: enumerate(NUMBERS, 5),
    "enumerate of values": lambda: enumerate(table().values()),
    "zip": lambda: zip(NUMBERS, range(9), strict=False),
    "zip of iterators": lambda: zip(table().items(), generated(NUMBERS), reversed(NUMBERS), strict=False),
    "zip strict": lambda: zip(NUMBERS, generated([1.0, 2.0]), strict=True),
    "map": lambda: map(operator.neg, NUMBERS),
    "map of two": lambda: map(lambda a, b: a * b, NUMBERS, table().values()),
    "filter": lambda: filter(lambda number: number != 2.5, NUMBERS),
    "filter none": lambda: filter(None, [0.0, 1.5, 2.5]),
    "user iterator": lambda: Countdown(4),
    "zip of user iterator": lambda: zip(Countdown(4), NUMBERS, strict=False),
    "file-like": lambda: Lines(),
    "callable iterator": lambda: iter(functools.partial(next, iter([1.5, 2.5, 3.5, 0.0])), 0.0),
    "generator": lambda: generated(NUMBERS),
    "generator that delegates": lambda: delegated(NUMBERS),
    "generator expression": lambda: (number * 2 for number in NUMBERS if number > 2),
    "nested generator expression": lambda: (a * b for a in NUMBERS for b in table().values()),
    "accumulate": lambda: itertools.accumulate(NUMBERS),
    "chain": lambda: itertools.chain(NUMBERS, table().values(), generated([7.0])),
    "chain.from_iterable": lambda: itertools.chain.from_iterable([NUMBERS, (1.0,)]),
    "compress": lambda: itertools.compress(NUMBERS, [1, 0, 1, 1]),
    "count": lambda: itertools.islice(itertools.count(0.5, 2), 4),
    "cycle": lambda: itertools.islice(itertools.cycle([1.5, 2.5]), 5),
    "dropwhile": lambda: itertools.dropwhile(lambda number: number < 2, NUMBERS),
    "takewhile": lambda: itertools.takewhile(lambda number: number < 4, NUMBERS),
    "filterfalse": lambda: itertools.filterfalse(lambda number: number == 2.5, NUMBERS),
    "groupby": lambda: (key for key, _ in itertools.groupby([1.5, 1.5, 2.5, 3.5])),
    "islice": lambda: itertools.islice(NUMBERS, 1, None, 2),
    "pairwise": lambda: itertools.pairwise(NUMBERS),
    "repeat": lambda: itertools.repeat(1.5, 3),
    "starmap": lambda: itertools.starmap(pow, [(2.0, 3), (3.0, 2)]),
    "tee": lambda: itertools.tee(NUMBERS)[1],
    "zip_longest": lambda: itertools.zip_longest([1.5], NUMBERS, fillvalue=0.5),
    "product": lambda: itertools.product([1.5, 2.5], [1, 2]),
    "permutations": lambda: itertools.permutations(NUMBERS, 2),
    "combinations": lambda: itertools.combinations(NUMBERS, 2),
    "children": lambda: torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()).children(),
}


def amount(item):
    """A number for whatever a loop gives."""
    while isinstance(item, tuple):
        item = item[-1]
    return float(ord(item[:1])) if isinstance(item, str) and item else item if isinstance(item, (int, float)) else 2.0


@pytest.mark.parametrize("kind", ITERABLES)
def test_made_inside_the_function_it_goes_over_the_break(kind):
    make = ITERABLES[kind]

    def function(x):
        x = x * 3
        for item in make():
            x = x + amount(item)
            note(repr(item)[:40], x)
            x = x * 0.5
        return x.sin()

    # At most: before the first break; behind a break; from the loop to the break; after the loop.
    assert agrees(function, lambda: (torch.randn(3),)) >= 3


@pytest.mark.parametrize("kind", ITERABLES)
def test_given_to_the_function_it_is_left_at_its_place(kind):
    make = ITERABLES[kind]

    def function(x, iterable):
        taken = []
        for item in iterable:
            x = x * 2
            taken.append(amount(item))
            if len(taken) == 2:
                note(x)
                break
            x = x + 1
        return x.cos(), taken

    compiled = bothways.compile(function, backend="eager")
    for _ in range(3):
        x, mine, other = torch.randn(3), iter(make()), iter(make())
        assert difference(observed(function, x, mine)["result"], observed(compiled, x, other)["result"]) is None
        assert [repr(each)[:40] for each in itertools.islice(mine, 4)] == [
            repr(each)[:40] for each in itertools.islice(other, 4)
        ]


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["dict.items", "generator that delegates", "zip of iterators", "chain", "list"])
def test_on_every_backend_with_gradients(kind, backend):
    make = ITERABLES[kind]

    def function(w, x):
        for item in make():
            x = torch.tanh(x @ w) + amount(item)
            note(x)
        loss = (x * w).sum()
        return loss, *torch.autograd.grad(loss, [w])

    agrees(function, lambda: (torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)), backend)


# Modules


class Block(torch.nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.linear, self.breaks = torch.nn.Linear(4, 4), breaks

    def forward(self, x):
        x = torch.relu(self.linear(x))
        if self.breaks:
            x = x * (x.sum().item() + 1)
        return x + 1


class Model(torch.nn.Module):
    def __init__(self, container, loop, breaks):
        super().__init__()
        self.blocks, self.loop = container([Block(index in breaks) for index in range(5)]), loop

    def forward(self, x):
        return self.loop(self, x * 2).sin()


def over(iterable, take=lambda item: item):
    def loop(model, x):
        for item in iterable(model):
            x = take(item)(x)
        return x

    return loop


def over_parameters(model, x):
    for parameter in model.parameters():
        x = x + parameter.sum()
        x = x * (1 if x.sum().item() > 0 else 2)
    return x


def sequential(blocks):
    return torch.nn.Sequential(*blocks)


def module_dict(blocks):
    return torch.nn.ModuleDict({f"block{index}": block for index, block in enumerate(blocks)})


def own_block(pair):
    return pair[1] if isinstance(pair[1], Block) else torch.nn.Identity()


LIST, DICT = torch.nn.ModuleList, module_dict
MODELS = {
    "ModuleList": (LIST, over(lambda model: model.blocks)),
    "Sequential": (sequential, over(lambda model: model.blocks)),
    "Sequential called": (sequential, lambda model, x: model.blocks(x)),
    "ModuleDict.values": (DICT, over(lambda model: model.blocks.values())),
    "ModuleDict.items": (DICT, over(lambda model: model.blocks.items(), lambda item: item[1])),
    "reversed": (LIST, over(lambda model: reversed(model.blocks))),
    "slice": (LIST, over(lambda model: model.blocks[1:])),
    "enumerate": (LIST, over(lambda model: enumerate(model.blocks), lambda item: item[1])),
    "zip": (LIST, over(lambda model: zip(range(9), model.blocks, strict=False), lambda item: item[1])),
    "generator expression": (LIST, over(lambda model: (block for block in model.blocks))),
    "chain": (LIST, over(lambda model: itertools.chain(model.blocks, model.blocks))),
    "children": (LIST, over(lambda model: model.blocks.children())),
    "named_children": (LIST, over(lambda model: model.blocks.named_children(), lambda item: item[1])),
    "modules": (LIST, over(lambda model: (each for each in model.modules() if isinstance(each, Block)))),
    "named_modules": (LIST, over(lambda model: model.named_modules(), own_block)),
    "parameters": (LIST, over_parameters),
}


@pytest.mark.parametrize("breaks", [(2,), (0, 1, 2, 3, 4), (0, 4)], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_a_block_that_breaks_leaves_the_others_in_graphs(kind, breaks):
    torch.manual_seed(0)
    model = Model(*MODELS[kind], breaks)
    with bothways.config.patch(numbers_from_data=False):
        # The blocks before; inside the block until it breaks, and after; a block that does not break; what follows.
        assert agrees(model, lambda: (torch.randn(2, 4),)) >= 4


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(index == 2) for index in range(6)])

    def forward(self, x):
        x = x * 2
        for block in self.blocks:
            x = block(x)
        return x.sin()


def test_one_break_in_the_middle_takes_five_graphs():
    """The blocks before; the one that breaks, until it does and afterwards; a block, for each of the rest; the end."""
    torch.manual_seed(0)
    with bothways.config.patch(numbers_from_data=False):
        agrees(Stack(), lambda: (torch.randn(2, 4),), graphs=5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_such_a_model_is_trained(backend):
    def make():
        torch.manual_seed(0)
        model = Model(*MODELS["ModuleList"], (1, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    (plain, its_optimizer), (model, optimizer) = make(), make()
    compiled = bothways.compile(model, backend=backend)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(2, 4)
        losses = []
        for run, steps in ((plain, its_optimizer), (compiled, optimizer)):
            steps.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


# The container changes


def grown(x, items):
    for index, item in enumerate(items):
        x = x + item
        note(x)
        if index < 3:
            items.append(index * 0.5)
    return x


def grown_before_the_break(x, items):
    for item in items:
        if len(items) < 9:
            items.append(item + 1)
        x = x + item
        note(len(items), x)
    return x


def shrunk_from_the_end(x, items):
    for item in reversed(items):
        x = x + item
        note(item)
        items.pop()
    return x


def changed_by_the_callee(x, items):
    for item in items:
        x = x + item
        swap(items)
    return x


@bothways.disable
def swap(items):
    note(list(items))
    items[-1] = items[-1] + 1 if items[-1] < 9 else items.pop()


@pytest.mark.parametrize("function", [grown, grown_before_the_break, shrunk_from_the_end, changed_by_the_callee])
def test_a_list_that_changes_is_seen_to(function):
    agrees(function, lambda: (torch.randn(3), [1.0, 2.0, 3.0]), again=False)

    def inside(x):
        return function(x, [1.0, 2.0, 3.0])

    agrees(inside, lambda: (torch.randn(3),), again=False)


CONTAINERS = {
    "dict": (table, lambda it: it.update(new=1.0)),
    "OrderedDict": (lambda: collections.OrderedDict(table()), lambda it: it.update(new=1.0)),
    "defaultdict": (lambda: collections.defaultdict(float, table()), lambda it: it["new"]),
    "OwnDict": (lambda: OwnDict(table()), lambda it: it.update(new=1.0)),
    "set": (lambda: {1.0, 2.0, 3.0}, lambda it: it.add(5.0)),
    "deque": (lambda: collections.deque(NUMBERS), lambda it: it.append(5.0)),
}


@pytest.mark.in_turn("when")
@pytest.mark.parametrize("when", ["before the break", "after the break", "by the callee", "before the loop"])
@pytest.mark.parametrize("view", ["itself", "values", "items", "reversed"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_that_changes_its_size_is_complained_about_as_ever(kind, view, when):
    make, change = CONTAINERS[kind]
    if (view == "reversed" and kind == "set") or (view in ("values", "items") and not issubclass(type(make()), dict)):
        pytest.skip("there is no such view")
    look = reversed if view == "reversed" else iter if view == "itself" else operator.methodcaller(view)
    changes = bothways.disable(change)

    def function(x, held):
        if when == "before the loop":
            change(held)
        for item in look(held):
            x = x + amount(item)
            if when == "before the break":
                change(held)
            note(x)
            x = x * 2
            if when == "after the break":
                change(held)
            if when == "by the callee":
                changes(held)
        return x

    def caught(x, held):
        try:
            return function(x, held)
        except RuntimeError as error:
            return x + 1, str(error)

    for run in (function, caught, lambda x: caught(x, make())):
        agrees(run, lambda run=run: (torch.randn(3), make())[: run.__code__.co_argcount], again=False)


def test_attributes_that_change_during_a_loop_over_them_are_complained_about():
    class Thing:
        def __init__(self):
            self.a, self.b = 1.0, 2.0

    def reads(x, thing):
        for name, value in vars(thing).items():
            x = x + value
            note(name)
            thing.b = 5.0
        return x

    def writes(x, thing):
        for name in vars(thing):
            x = x + 1
            note(name)
            setattr(thing, name + "_", x)
        return x

    def writes_without_a_break(x, thing):
        for name in vars(thing):
            setattr(thing, name + "_", x)
        return x

    for function in (reads, writes, writes_without_a_break):
        agrees(lambda x, f=function: (f(x, thing := Thing()), vars(thing)), lambda: (torch.randn(3),), again=False)


# Who sees what, and when


def test_the_iterator_stays_the_same_object():
    def function(x):
        numbers = iter(table().items())
        both = zip(numbers, numbers, strict=False)
        kept = [numbers, both]
        for _, number in both:
            x = x + number[1]
            note(x)
            kept.append(numbers)
        return x, kept[0] is kept[-1], next(numbers, "end"), list(both)

    agrees(function, lambda: (torch.randn(3),))


def test_an_iterator_that_came_to_its_end_stays_there():
    def function(x, items):
        made = [iter(items), iter(table().values()), (n for n in items), zip(items, items, strict=False),
                iter({1.0}), iter(collections.deque(items)), reversed(items), iter(lambda: 1, 1)]  # fmt: skip
        taken = [list(each) for each in made]
        note(x + 1)
        items.append(7.0)
        return x * 2, taken, [list(each) for each in made]

    agrees(function, lambda: (torch.randn(3), [1.0, 2.0]))


def test_the_turns_of_a_generator_come_in_order():
    def noisy(x):
        try:
            for index in range(3):
                LOG.append(("made", index))
                yield x + index
                LOG.append(("resumed", index))
        finally:
            LOG.append("closed")

    def function(x, stop):
        for index, y in enumerate(noisy(x * 2)):
            x = x + y
            note(index)
            if index == stop:
                break
        note("after")
        return x.sin()

    for stop in (0, 1, 5):
        agrees(function, lambda stop=stop: (torch.randn(3), stop))


def test_a_break_inside_the_generator_itself():
    def noisy(x):
        for index in range(4):
            y = x * index
            note("inside", y)
            yield y.sin()

    def function(x):
        for y in noisy(x + 1):
            x = x + y
        return x * 2

    agrees(function, lambda: (torch.randn(3),))


def test_what_is_sent_to_a_generator_after_the_break_arrives():
    def averaging(x):
        total, count = x, 1
        while True:
            total = total + (yield total / count)
            count += 1

    def function(x):
        average = averaging(x)
        y = next(average)
        for index in range(3):
            y = average.send(y + index)
            note(y)
        average.close()
        return y * 2

    agrees(function, lambda: (torch.randn(3),))


# Loops within others


def test_nested_loops():
    def function(x, names):
        for name, number in names.items():
            for index, factor in enumerate(generated([1.0, 2.0])):
                x = x * factor
                if index == 1:
                    note(name, x)
                    continue
                x = x + number
            else:
                note("else", name)
            if name == "b":
                break
        return x.sin()

    agrees(function, lambda: (torch.randn(3), table()))


def test_loops_in_callees():
    def inner(x, names):
        for number in names.values():
            x = (x + number).sin()
            note(x)
        return x

    def function(x, names):
        for each in (names, {"z": 0.5}):
            x = inner(x, each) * 2
        return [inner(x + number, names) for number in names.values()]

    agrees(function, lambda: (torch.randn(3), table()))


def test_loops_in_try_and_with():
    @contextlib.contextmanager
    def noting(name):
        LOG.append(("enter", name))
        try:
            yield name
        except KeyError as error:
            LOG.append(("swallowed", repr(error)))
        finally:
            LOG.append(("leave", name))

    def function(x, names, fails):
        with noting("outer"):
            try:
                for name, number in names.items():
                    with noting(name), torch.no_grad():
                        x = x + number
                        note(name, x)
                        if name == fails:
                            raise KeyError(name) if fails == "b" else ValueError(name)
                        x = x * 2
            except ValueError as error:
                x = x - 1
                for letter in reversed(error.args[0]):
                    note(letter, x)
                    x = x * 3
            finally:
                for index in itertools.islice(itertools.count(), 2):
                    note("finally", index)
                    x = x + index
        return x

    for fails in ("a", "b", None):
        agrees(function, lambda fails=fails: (torch.randn(3), table(), fails))


def test_a_loop_that_ends_in_an_exception_of_the_iterator():
    def failing(x):
        yield x
        raise ValueError("no more")

    def function(x):
        try:
            for y in failing(x):
                x = x + y
                note(x)
        except ValueError as error:
            return x * 2, str(error)

    def uncaught(x):
        for y, _ in zip(failing(x), table().values(), strict=False):
            x = x + y
            note(x)

    agrees(function, lambda: (torch.randn(3),))
    agrees(uncaught, lambda: (torch.randn(3),))


def test_a_comprehension_that_breaks():
    def function(x, names):
        doubled = {name: (x * number, note(name)) for name, number in names.items()}
        return [value.sin() + len(doubled) for value, _ in doubled.values()]

    agrees(function, lambda: (torch.randn(3), table()))


# What is told


def test_a_callers_reason_is_told_beside_that_of_its_callee():
    def callee(x):
        return x * x.sum().item()

    def caller(x):
        x = callee(x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return callee(x)

    with bothways.config.patch(numbers_from_data=False):
        told = bothways.explain(caller)(torch.ones(2)).breaks
    assert any("hooks for saved tensors" in each.reason for each in told)
    assert len({(each.code, each.where, each.reason) for each in told}) == len(told)


def test_reasons_that_differ_at_each_call_do_not_pile_up():
    def function(x, items):
        return x + len(items), items.index(None)

    compiled = bothways.compile(function, backend="eager")
    for count in range(30):
        with contextlib.suppress(ValueError):
            compiled(torch.ones(2), [f"text {count}"])
    assert len(bothways.explain(compiled).breaks) < 10
