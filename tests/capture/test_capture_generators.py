"""Generators inside compiled functions: resumed, sent to, thrown into, closed, delegated to, left behind."""

import sys
import types

import pytest
import torch
from programs import agree, raises

import bothways
from bothways.errors import Unsupported

X = torch.arange(4.0)


def count(n):
    for i in range(n):
        yield i
    return "done"


def echo(log):
    """Yields back what is sent to it, and notes what is thrown at it."""
    received = None
    while True:
        try:
            received = yield received
            log.append(("sent", received))
        except ValueError as error:
            log.append(("thrown", str(error)))
            received = "recovered"
        except GeneratorExit:
            log.append("closed")
            raise
        finally:
            log.append("finally")


def step(action):
    """What an action on a generator does."""
    try:
        return action()
    except StopIteration as stop:
        return "stopped", stop.value
    except Exception as error:
        return type(error).__name__, str(error)


# Consuming


def test_generators_are_consumed():
    def program(x, n):
        first, *rest = count(n)
        looped = [i * 2 for i in count(n)]
        for i in count(n):
            x = x + i
        pairs = list(zip(count(n), count(n + 1)))
        found = next((i for i in count(n) if i > 0), "nothing")
        folded = sum(count(n)), max(count(n)), n in count(n), dict(enumerate(count(2)))
        return x, first, rest, looped, pairs, found, folded

    agree(program, (X, 2), (X, 3))


def test_generators_of_tensors():
    def powers(x, n):
        power = x
        for _ in range(n):
            power = power * x
            yield power

    def program(x, n):
        return sum(powers(x, n)), torch.stack(list(powers(x, n))), *(p + 1 for p in powers(x, n))

    agree(program, (X, 2), (X, 3))


def test_generator_expressions():
    def program(x, n):
        outer = (i for i in range(n) if i)
        nested = ((i, j) for i in range(n) for j in range(i))
        lazy = (seen.append(i) or i for i in range(n)) if (seen := []) == [] else None
        before = list(seen)
        next(lazy)
        functions = (lambda: (i, n) for i in range(n))
        return x + n, list(outer), list(nested), before, seen, [f() for f in functions], tuple(v + n for v in x)

    agree(program, (X, 2), (X, 3))


def test_a_generator_runs_only_as_far_as_it_is_asked():
    def noting(log, n):
        for i in range(n):
            log.append(i)
            yield i

    def program(x, n):
        log = []
        numbers = noting(log, n)
        log.append("made")
        next(numbers)
        log.append("first")
        next(numbers)
        return x + n, log, next(iter(numbers), "end"), next(numbers, "end"), list(numbers)

    agree(program, (X, 3), (X, 2))


# Send, throw, close


def test_send_throw_and_close():
    def program(x, n):
        log = []
        it = echo(log)
        steps = [
            step(lambda: it.send(1)),
            step(lambda: next(it)),
            step(lambda: it.send(n)),
            step(lambda: it.throw(ValueError("v"))),
            step(lambda: it.throw(ValueError)),
            step(lambda: it.send("again")),
            step(lambda: it.close()),
            step(lambda: it.close()),
            step(lambda: next(it)),
            step(lambda: it.send(1)),
            step(lambda: it.throw(KeyError("k"))),
        ]
        return x + n, steps, log

    agree(program, (X, 2), (X, 3))


def test_an_exception_that_is_not_handled_ends_the_generator():
    def program(x, n):
        log = []
        it = echo(log)
        next(it)
        steps = [step(lambda: it.throw(KeyError("k"))), step(lambda: next(it)), step(lambda: it.close())]
        unstarted = echo(log)
        steps += [step(lambda: unstarted.throw(ValueError("early"))), step(lambda: next(unstarted))]
        never = echo(log)
        steps += [step(lambda: never.close()), step(lambda: next(never)), step(lambda: it.throw(n))]
        return x + n, steps, log

    agree(program, (X, 2), (X, 3))


def test_return_values_travel_in_stop_iteration():
    def returns(n):
        yield n
        return [n]

    def program(x, n):
        it = returns(n)
        empty = count(0)
        return x + n, [step(lambda: next(it)) for _ in range(3)], step(lambda: next(empty)), step(lambda: next(empty))

    agree(program, (X, 2), (X, 3))


def test_stop_iteration_must_not_leave_a_generator():
    def leaks():
        yield 1
        raise StopIteration("leaked")

    def passes():
        try:
            yield
        except ValueError:
            next(iter(()))

    def program(x, n):
        seen = []
        it = leaks()
        next(it)
        passing = passes()
        next(passing)
        for action in (lambda: next(it), lambda: passing.throw(ValueError(n))):
            try:
                action()
            except RuntimeError as error:
                seen.append((str(error), repr(error.__cause__), repr(error.__context__)))
        thrown = count(3)
        next(thrown)
        return x + n, seen, step(lambda: thrown.throw(StopIteration(1))), step(lambda: count(1).throw(StopIteration))

    agree(program, (X, 2), (X, 3))


def test_a_generator_that_refuses_to_close():
    def stubborn():
        while True:
            try:
                yield
            except GeneratorExit:
                pass

    def obedient(result):
        try:
            yield
        except GeneratorExit:
            return result

    def program(x, n):
        steps = []
        for it in (stubborn(), obedient(n)):
            next(it)
            steps.append(step(lambda: it.close()))
        return x + n, steps

    # Dropping the stubborn one is the business of the caller, plain or compiled.
    def tidy(x, n):
        it = obedient(n)
        next(it)
        return x + n, step(lambda: it.close()), step(lambda: next(it))

    agree(tidy, (X, 2), (X, 3))
    with pytest.raises(Unsupported) as caught:
        bothways.compile(program, backend="eager", fullgraph=True)(X, 2)
    assert caught.value.break_.code == "generator_escapes"


def test_a_generator_cannot_resume_itself():
    def program(x, n):
        def selfish():
            try:
                next(it)
            except ValueError as error:
                yield str(error)
            yield n

        it = selfish()
        return x + n, list(it)

    agree(program, (X, 2), (X, 3))


# Delegation


def test_yield_from_passes_values_through():
    def inner(n):
        got = yield n
        got = yield got
        return "inner", got

    def outer(n):
        result = yield from inner(n)
        yield result
        yield from [1, n]
        yield from "ab"
        nothing = yield from ()
        return nothing

    def program(x, n):
        it = outer(n)
        steps = [next(it), it.send("sent"), it.send("last")]
        return x + n, steps, list(it), step(lambda: next(it)), list(outer(n))

    agree(program, (X, 2), (X, 3))


def test_yield_from_passes_exceptions_through():
    def outer(log, inner):
        try:
            result = yield from inner
            log.append(("result", result))
        except KeyError as error:
            log.append(("outer", str(error)))
            result = "handled"
        yield result
        return "end"

    def ends(log):
        try:
            yield 1
        except ValueError:
            log.append("ends")
            return "ended by throw"

    def program(x, n):
        log = []
        steps = []
        for inner in (echo(log), ends(log), iter([1, n])):
            it = outer(log, inner)
            steps.append(step(lambda: next(it)))
            steps.append(step(lambda: it.throw(ValueError(n))))
            steps.append(step(lambda: it.throw(KeyError(n))))
            steps.append(step(lambda: it.send(None)))
            steps.append(step(lambda: next(it)))
        return x + n, steps, log

    agree(program, (X, 2), (X, 3))


def test_closing_reaches_the_inner_generator_first():
    def outer(log, inner):
        try:
            yield from inner
        finally:
            log.append("outer")

    class Closable:
        def __init__(self, log):
            self.log = log

        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def close(self):
            self.log.append("closable")

        def throw(self, error):
            self.log.append(repr(error))
            return "thrown"

        def send(self, value):
            self.log.append(value)
            return "sent"

    def program(x, n):
        log = []
        it = outer(log, echo(log))
        next(it)
        it.close()
        other = outer(log, Closable(log))
        steps = [next(other), other.send(n), other.throw(ValueError(n)), step(lambda: other.close())]
        return x + n, log, steps

    agree(program, (X, 2), (X, 3))


def test_recursive_generators():
    def walk(tree):
        if isinstance(tree, list):
            for branch in tree:
                yield from walk(branch)
        else:
            yield tree

    def program(x, tree):
        return x + sum(walk(tree)), list(walk(tree))

    agree(program, (X, [1, [2, [3, []]], 4]), (X, [[5]]))


# What a generator handles is its own business


def test_handled_exceptions_stay_inside_the_generator():
    def pauses(log):
        try:
            raise ValueError("inner")
        except ValueError:
            yield 1
            try:
                raise
            except ValueError as error:
                log.append(repr(error))
            try:
                raise KeyError("new")
            except KeyError as error:
                log.append((repr(error), repr(error.__context__)))
        yield 2

    def sees(log):
        try:
            raise
        except BaseException as error:
            log.append(repr(error))
        yield

    def program(x, n):
        log = []
        it = pauses(log)
        next(it)
        try:
            raise
        except RuntimeError as error:
            log.append(str(error))
        try:
            raise TypeError(n)
        except TypeError:
            next(it)
            list(sees(log))
            try:
                raise OSError(n)
            except OSError as error:
                log.append(repr(error.__context__))
        list(it)
        list(sees(log))
        return x + n, log

    agree(program, (X, 2), (X, 3))


def test_generator_methods_and_objects():
    class Tree:
        def __init__(self, *items):
            self.items = items

        def __iter__(self):
            for item in self.items:
                yield item
                self.seen = item

    def program(x, n):
        tree = Tree(1, n)
        it = iter(tree)
        return x + n, list(tree), tree.seen, iter(it) is it, next(it), it.__next__()

    agree(program, (X, 2), (X, 3))


# What is left behind


def test_a_generator_that_is_dropped_without_cleanup_is_fine():
    def program(x, n):
        it = count(10)
        for i in it:
            if i == n:
                break
        return x + i

    agree(program, (X, 2), (X, 3))


def test_a_generator_that_would_clean_up_later_is_a_break():
    def program(x, log):
        it = echo(log)
        next(it)
        return x + 1

    with pytest.raises(Unsupported) as caught:
        bothways.compile(program, backend="eager", fullgraph=True)(X, [])
    assert caught.value.break_.code == "generator_escapes"


def test_a_generator_that_has_not_begun_is_returned():
    began = []

    def scaled(x, *factors, offset=0, **named):
        began.append(offset)
        for factor in (*factors, *named.values()):
            yield x * factor + offset

    def program(x, n):
        y = x + n
        items = [x, y]
        return y, scaled(y, 1, n, offset=3, last=4), (item * 2 for item in items), scaled(y)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for n in (2, 2, 3):
        expected, actual = program(X, n), compiled(X, n)
        assert began == []
        for mine, other in zip(actual, expected, strict=True):
            assert type(mine) is type(other)
            torch.testing.assert_close(list(mine), list(other))
        began.clear()


def test_an_exception_that_leaves_through_a_generator_is_the_users_own():
    def fails(n):
        yield n
        raise ValueError(n)

    def program(x, n):
        return x + sum(fails(n))

    raises(program, (X, 2))


def test_untouched_generators_leave_the_function():
    def function(x, scale):
        y = x * scale

        def numbers(first, *others, step=2, **named):
            yield first + step
            yield sum(others) + named["last"]
            yield y

        made = numbers(x, 1, 2, step=5, last=4)
        return made, (z + 1 for z in [x, y]), [made]

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for scale in (2, 2, 3):
        plain, found = function(torch.ones(2), scale), compiled(torch.ones(2), scale)
        assert found[2][0] is found[0]
        for ours, theirs in zip(found[:2], plain[:2], strict=True):
            assert [str(item) for item in ours] == [str(item) for item in theirs]


def test_a_generator_that_was_begun_leaves_where_it_stands():
    def function(x):
        made = (x + number for number in range(3))
        return next(made), made

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        first, rest = compiled(torch.ones(2))
        assert first.tolist() == [1, 1] and [item.tolist() for item in rest] == [[2, 2], [3, 3]]


def test_a_generator_that_leaves_takes_what_is_sent_and_thrown_and_cleans_up_at_its_time():
    def asked(log, x):
        try:
            while True:
                try:
                    x = x * (yield x)
                except KeyError as error:
                    log.append(repr(error))
                    yield "caught"
        finally:
            log.append("over")

    def around(log, x):
        result = yield from asked(log, x)
        log.append(result)

    def function(log, x, n):
        made, outer, ended = asked(log, x), around(log, x + 1), iter(())
        generators = made, outer, (each for each in ended)
        for _ in range(n):
            next(made)
            made.send(2)
            next(outer)
            made.throw(KeyError(n))
            list(generators[2])
        return generators, x + 1

    def use(log, made, outer, empty):
        seen = [next(made), made.send(3), outer.send(5), outer.throw(KeyError("late")), list(empty)]
        seen += [outer.gi_yieldfrom is not None, made.gi_yieldfrom, made.__name__, outer.__qualname__]
        try:
            outer.throw(ValueError("through"))
        except ValueError as error:
            seen.append(repr(error))
        log.append("before")
        made.close()
        return [item.tolist() if isinstance(item, torch.Tensor) else item for item in seen]

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for n in (1, 1):
        plain_log, log = [], []
        plain, found = function(plain_log, X, n)[0], compiled(log, X, n)[0]
        assert use(plain_log, *plain) == use(log, *found) and plain_log == log
        assert [type(each) for each in found] == [types.GeneratorType] * 3


def test_a_generator_that_leaves_while_it_handles_an_exception_still_handles_it():
    def careful(x):
        try:
            raise KeyError("first")
        except KeyError:
            yield x
            yield repr(sys.exception())
            raise

    def function(x):
        made = careful(x)
        return next(made) + 1, made

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for run in (function, compiled, compiled):
        made = run(X)[1]
        assert next(made) == "KeyError('first')" and sys.exception() is None
        with pytest.raises(KeyError, match="first"):
            next(made)
