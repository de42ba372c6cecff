"""A generator that is let go of cleans up at that moment: also when an exception leaves its loop, before the handler.

Whoever holds the generator besides the user's frame, a generated program or the frames that an exception has passed,
would move the cleanup to some later time.
"""

import contextlib
import warnings

import pytest
import torch

import bothways
from bothways.errors import RecompileLimitWarning
from bothways.testing import difference

BACKENDS = ["eager", "aot_eager", "native"]
LOG = []


def note(what):
    LOG.append(what)


def cleaning(t, count, name="cleanup"):
    note("begun")
    try:
        for index in range(count):
            yield t * index
    finally:
        note(name)


@contextlib.contextmanager
def around(name):
    note(("enter", name))
    try:
        yield
    finally:
        note(("leave", name))


def inside_with(t, count):
    with around("generator"):
        for index in range(count):
            yield t + index


def delegating(t, count):
    yield from cleaning(t, count)


def breaking(t, fails):
    note("turn")
    t.sum().item()
    if fails:
        raise ValueError("told to")
    return t + 1


# Programs: a tensor, and whether (or where) a turn of the loop fails.


def caught(x, fails):
    y = x * 2
    try:
        for t in cleaning(y, 3):
            y = breaking(t, fails) + y
    except ValueError:
        note("except")
    note("after")
    return y * 2


def caught_from_the_second_turn_on(x, fails):
    y = x * 2
    try:
        for t in cleaning(y, 3):
            y = breaking(t, fails and float(t.sum()) != 0) + y
    except ValueError:
        note("except")
    return y * 2


def raised_in_the_loop_itself(x, fails):
    y = x * 2
    try:
        for t in cleaning(y, 3):
            y = y + t.sum().item()
            if fails:
                raise ValueError("here")
    except ValueError:
        note("except")
    return y


def _inner(x, fails):
    for t in cleaning(x, 3):
        x = breaking(t, fails) + x
    return x


def caught_by_the_caller(x, fails):
    try:
        return _inner(x * 2, fails)
    except ValueError:
        note("except")
    return x


def not_caught(x, fails):
    return _inner(x, fails) * 2


def with_a_finally(x, fails):
    try:
        for t in cleaning(x, 2):
            x = breaking(t, fails) + x
    finally:
        note("finally")
    return x


def zipped(x, fails):
    try:
        for a, b in zip(cleaning(x, 3), inside_with(x, 2), strict=False):
            x = breaking(a + b, fails) + x
    except ValueError:
        note("except")
    return x


def nested(x, fails):
    try:
        for a in cleaning(x, 2, "outer"):
            for b in inside_with(a, 2):
                x = breaking(a + b, fails) + x
    except ValueError:
        note("except")
    return x


def mapped(x, fails):
    try:
        for t in map(lambda v: breaking(v, fails), cleaning(x, 3)):
            x = t + x
    except ValueError:
        note("except")
    return x


def of_an_expression(x, fails):
    try:
        for t in (v * 2 for v in cleaning(x, 3)):
            x = breaking(t, fails) + x
    except ValueError:
        note("except")
    return x


def delegated(x, fails):
    try:
        for t in delegating(x, 3):
            x = breaking(t, fails) + x
    except ValueError:
        note("except")
    return x


def in_a_variable(x, fails):
    """The frame keeps it as long as the exception keeps the frame."""
    generator = cleaning(x, 3)
    try:
        for t in generator:
            x = breaking(t, fails) + x
    except ValueError:
        note("except")
    note("after")
    return x


def variable_is_deleted(x, fails):
    generator = cleaning(x, 3)
    y = breaking(next(generator), False)
    del generator
    note("deleted")
    return y + 1


def variable_gets_another_value(x, fails):
    generator = cleaning(x, 3)
    y = breaking(next(generator), False)
    generator = None
    note(generator)
    return y + 1


def variable_is_one_of_two(x, fails):
    generator = other = cleaning(x, 3)
    y = breaking(next(generator), False)
    generator = None
    note("there is another")
    other = generator
    note(other)
    return y + 1


def variable_held_a_list_before(x, fails):
    items = [x]
    if fails:
        items = cleaning(x, 3)
        next(items)
    y = breaking(x * 2, False)
    items = None
    note(items)
    return y + 1


def variable_is_not_read_this_time(x, fails):
    items = [x]
    if fails:
        items = cleaning(x, 3)
        next(items)
    y = breaking(x * 2, False)
    if x.shape[0] == 5:
        y = y + sum(items)
    items = None
    note(items)
    return y + 1


def variable_takes_from_one(x, fails):
    pairs = zip(cleaning(x, 2), [1, 2], strict=False)
    y, _ = next(pairs)
    y = breaking(y, False)
    pairs = None
    note(pairs)
    return y


def kept_by_no_variable(x, fails):
    y = next(cleaning(x, 3))
    note("it is gone")
    return y + y.sum().item()


def while_another_is_handled(x, fails):
    try:
        try:
            for t in cleaning(x, 2, "first"):
                breaking(t, fails)
        except ValueError:
            for t in cleaning(x, 2, "second"):
                breaking(t, False)
                raise KeyError("b") from None
    except KeyError as error:
        note(type(error.__context__).__name__)
    return x


def with_managers_around(x, fails):
    with around("function"):
        for t in cleaning(x, 3):
            x = breaking(t, fails) + x
    return x


PROGRAMS = [
    caught, caught_from_the_second_turn_on, raised_in_the_loop_itself, caught_by_the_caller, not_caught, with_a_finally,
    zipped, nested, mapped, of_an_expression, delegated, in_a_variable, variable_is_deleted,
    variable_gets_another_value, variable_is_one_of_two, variable_held_a_list_before, variable_is_not_read_this_time,
    variable_takes_from_one, kept_by_no_variable, while_another_is_handled, with_managers_around,
]  # fmt: skip


def observed(run, fails):
    LOG.clear()
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    try:
        result = run(x, fails)
        result.sum().backward()
    except Exception as error:
        result = type(error), str(error)
    note("returned")
    return result, x.grad, list(LOG)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_generator_cleans_up_when_its_loop_is_left(program, first, backend):
    compiled = bothways.compile(program, backend=backend)
    for fails in (first, not first, first, not first, True, True, False):
        expected, found = observed(program, fails), observed(compiled, fails)
        assert difference(expected, found) is None, difference(expected, found)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_cleanups_come_in_time_where_nothing_more_is_captured(program):
    with bothways.config.patch(recompile_limit=1):
        compiled = bothways.compile(program, backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecompileLimitWarning)
            for fails in (False, True, False, True, True):
                expected, found = observed(program, fails), observed(compiled, fails)
                assert difference(expected, found) is None, difference(expected, found)


def chained(x, numbers):
    pairs = zip(numbers, numbers, strict=True)
    x = x + x.sum().item()
    pairs = map(max, pairs)
    for number in pairs:
        x = x.sin() + number
        note(x.sum().item() > 0)
    return x * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_variable_that_is_given_what_takes_from_it_leaves_the_rest_compiled(backend):
    compiled = bothways.compile(chained, backend=backend)
    for numbers in ([1.0, 2.0], [1.0, 2.0], [3.0], []):
        assert difference(observed(chained, numbers), observed(compiled, numbers)) is None
    assert not bothways.explain(compiled).plain_from_now_on


class Ending:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        note(("gone", self.name))


def deleted(x, fails):
    thing = Ending("first")
    y = x * 2
    del thing
    note("deleted")
    return y


def given_another_value(x, fails):
    thing = Ending("first")
    y = x * 2
    thing = Ending("second") if fails else None
    note("given")
    return y * (1 if thing is None else len(thing.name))


def held_by_two(x, fails):
    thing = other = Ending("first")
    del thing
    note("still there")
    x = x * 2
    del other
    note("gone")
    return x


def raised_past(x, fails):
    try:
        thing = Ending("first")
        if fails:
            raise ValueError("told to")
    except ValueError:
        note("caught")
    del thing
    note("deleted")
    return x * 2


def deleted_in_a_block(x, fails):
    thing = Ending("first")
    with around("block"):
        y = x * 2
        del thing
        note("deleted")
    return y


ENDINGS = [deleted, given_another_value, held_by_two, raised_past, deleted_in_a_block]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", ENDINGS, ids=lambda program: program.__name__)
def test_an_object_with_an_end_of_its_own_is_gone_when_its_variable_is(program, backend):
    compiled = bothways.compile(program, backend=backend)
    for fails in (False, False, True, True, False):
        expected, found = observed(program, fails), observed(compiled, fails)
        assert difference(expected, found) is None, difference(expected, found)
    assert not bothways.explain(compiled).plain_from_now_on
