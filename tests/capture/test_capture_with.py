"""``with`` over context managers written in Python, and those of ``contextlib``, inside compiled functions."""

import contextlib

import pytest
import torch
from programs import agree, raises

import bothways
from bothways.errors import Unsupported

X = torch.arange(4.0)


class Manager:
    def __init__(self, log, name, suppress=False):
        self.log, self.name, self.suppress = log, name, suppress

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, value, traceback):
        seen = None if kind is None else (kind.__name__, str(value), traceback is not None)
        self.log.append(("exit", self.name, seen))
        return self.suppress


@contextlib.contextmanager
def managed(log, name, handle=False):
    log.append(("enter", name))
    try:
        yield name
    except ValueError as error:
        log.append(("error", name, str(error)))
        if not handle:
            raise
    finally:
        log.append(("exit", name))


def test_enter_and_exit_run_in_order():
    def program(x, n):
        log = []
        with Manager(log, "a") as a, Manager(log, "b") as (b):
            log.append((a, b))
            with Manager(log, "c"):
                x = x * n
        with (Manager(log, "d"), Manager(log, "e") as e):
            x = x + 1
        return x, log, e

    agree(program, (X, 2), (X, 3))


def test_every_way_out_of_with_runs_exit():
    def program(x, n):
        log = []

        def leave(how):
            for i in range(2):
                with Manager(log, how):
                    if how == "break":
                        break
                    if how == "continue":
                        continue
                    if how == "return":
                        return i
            return "end"

        return x + n, [leave(how) for how in ("break", "continue", "return", "nothing")], log

    agree(program, (X, 2), (X, 3))


@pytest.mark.parametrize("suppress", [True, False])
def test_exit_sees_the_exception_and_may_suppress_it(suppress):
    def program(x, n):
        log = []
        try:
            with Manager(log, "outer"), Manager(log, "inner", suppress):
                raise ValueError(n)
            log.append("suppressed")
        except ValueError as error:
            log.append(("caught", error.args))
        return x + n, log

    agree(program, (X, 2), (X, 3))


def test_exit_may_raise_something_else():
    class Raises:
        def __enter__(self):
            return self

        def __exit__(self, kind, value, traceback):
            raise KeyError("from exit")

    def program(x, n):
        seen = []
        for fails in (True, False):
            try:
                with Raises():
                    if fails:
                        raise ValueError(n)
            except KeyError as error:
                seen.append((str(error), repr(error.__context__)))
        return x + n, seen

    agree(program, (X, 2), (X, 3))


def test_a_manager_from_outside_keeps_what_happened_to_it():
    def program(x, manager):
        with manager as name:
            x = x + 1
        return x, name

    agree(program, (X, Manager([], "a")), (X, Manager([("old",)], "b")))


def test_what_is_no_context_manager_raises():
    class Half:
        def __enter__(self):
            pass

    def program(x, n):
        texts = []
        for thing in (n, Half()):
            try:
                with thing:
                    pass
            except TypeError as error:
                texts.append(str(error))
        return x + n, texts

    agree(program, (X, 2), (X, 3))


# contextlib


@pytest.mark.parametrize("handle", [True, False])
def test_generators_as_context_managers(handle):
    def program(x, n):
        log = []
        with managed(log, "plain") as name:
            x = x + n
            log.append(name)
        try:
            with managed(log, "outer", handle), managed(log, "inner"):
                raise ValueError(n)
        except ValueError as error:
            log.append(("caught", error.args))
        try:
            with managed(log, "other", handle):
                raise KeyError(n)
        except KeyError as error:
            log.append(("caught", error.args))
        return x, log

    agree(program, (X, 2), (X, 3))


def test_a_generator_manager_that_returns_early_inside_a_loop():
    def find(log, n):
        for i in range(5):
            with managed(log, i):
                if i == n:
                    return i

    def program(x, n):
        log = []
        return x + n, find(log, n), log

    agree(program, (X, 1), (X, 2))


def test_generators_as_decorators():
    def program(x, n):
        log = []

        @managed(log, "decorated")
        def inner(y):
            return y * n

        return inner(x), inner(x), log

    agree(program, (X, 2), (X, 3))


def test_misbehaving_generator_managers():
    @contextlib.contextmanager
    def twice():
        yield 1
        yield 2

    @contextlib.contextmanager
    def never():
        return
        yield

    @contextlib.contextmanager
    def ignores():
        try:
            yield
        except ValueError:
            yield

    def program(x, n):
        texts = []
        for make, fails in ((twice, False), (never, False), (ignores, True)):
            try:
                with make():
                    if fails:
                        raise ValueError(n)
            except RuntimeError as error:
                texts.append(str(error))
        return x + n, texts

    agree(program, (X, 2), (X, 3))


def test_suppress_and_nullcontext():
    def program(x, n):
        trail = []
        with contextlib.suppress(KeyError, ValueError):
            trail.append("in")
            raise ValueError(n)
        with contextlib.suppress(IndexError):
            trail.append([1][n])
        with contextlib.nullcontext(n) as same, contextlib.nullcontext():
            trail.append(same)
        try:
            with contextlib.suppress(KeyError):
                raise TypeError(n)
        except TypeError as error:
            trail.append(error.args)
        return x + n, trail

    agree(program, (X, 0), (X, 1))


def test_exit_stack():
    def program(x, n):
        log = []
        with contextlib.ExitStack() as stack:
            for i in range(n):
                stack.enter_context(Manager(log, i))
            stack.enter_context(managed(log, "generator"))
            stack.callback(log.append, "callback")
            x = x + n
        return x, log

    agree(program, (X, 2), (X, 3))


def test_exit_stack_and_exceptions():
    def program(x, n):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Manager(log, "suppresses", suppress=True))
            stack.enter_context(Manager(log, "sees"))
            raise ValueError(n)
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(managed(log, "passes on"))
                stack.push(lambda *details: log.append(details[0]))
                raise ValueError(n)
        except ValueError as error:
            log.append(error.args)
        return x + n, log

    agree(program, (X, 2), (X, 3))


def test_closing():
    class Thing:
        def __init__(self, log):
            self.log = log

        def close(self):
            self.log.append("closed")

    def program(x, n):
        log = []
        with contextlib.closing(Thing(log)) as thing:
            log.append(thing.log is log)
        return x + n, log

    agree(program, (X, 2), (X, 3))


# What leaves, and what is left


def test_an_exception_that_leaves_with_is_the_users_own():
    def program(x, n, log):
        with Manager(log, "a"), managed(log, "b"):
            raise ValueError(n)

    raises(program, (X, 2, []))


def test_asynchronous_code_is_a_break():
    async def program(x):
        async with x:
            return x + 1

    with pytest.raises(Unsupported) as caught:
        bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert caught.value.break_.code == "async"


def test_exception_groups_are_a_break():
    def program(x):
        try:
            x = x + 1
            raise ValueError
        except* ValueError:
            return_value = x
        return return_value

    with pytest.raises(Unsupported) as caught:
        bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert caught.value.break_.code == "opcode_unknown"
