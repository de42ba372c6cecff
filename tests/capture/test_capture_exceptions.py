"""Exceptions of captured Python: raised, caught, chained, cleaned up after; and exceptions that leave."""

import sys

import pytest
import torch
from programs import agree, compare, raises

import bothways
from bothways.testing import CompileCounter

X = torch.arange(4.0)


class Problem(Exception):
    def __init__(self, code, *more):
        super().__init__(f"problem {code}", *more)
        self.code = code


class Smaller(Problem, ValueError):
    pass


def fail(n):
    """Raises something else for each number."""
    if n == 0:
        raise ValueError("zero", n)
    if n == 1:
        raise KeyError("one")
    if n == 2:
        return [][n]
    if n == 3:
        return {}["three"]
    if n == 4:
        return 1 // 0
    if n == 5:
        return None.attribute
    if n == 6:
        return undefined_name  # noqa: F821
    if n == 7:
        raise Problem(7, "more")
    if n == 8:
        raise Smaller(8)
    if n == 9:
        return int("nine")
    if n == 10:
        raise TypeError
    if n == 11:
        return "a" + 1
    if n == 12:
        return next(iter(()))
    return n


@pytest.mark.parametrize("number", range(14))
def test_every_exception_can_be_caught_and_looked_at(number):
    def program(x, n):
        try:
            result = fail(n)
        except (ValueError, KeyError) as error:
            return x + 1, type(error).__name__, error.args, str(error), repr(error)
        except LookupError as error:
            return x + 2, type(error).__name__, str(error)
        except Problem as error:
            return x + 3, error.code, error.args, str(error), repr(error)
        except Exception as error:
            return x + 4, type(error).__name__, str(error), isinstance(error, ArithmeticError)
        else:
            return x + 5, result

    agree(program, (X, number), (X, (number + 1) % 14))


def test_the_order_of_try_except_else_finally():
    def program(x, n):
        trail = []

        def run(k):
            trail.append(k)
            try:
                trail.append("try")
                fail(k)
                trail.append("after")
            except ValueError:
                trail.append("value")
                if k == 9:
                    return "from except"
            except KeyError as error:
                trail.append(str(error))
            else:
                trail.append("else")
                return "from else"
            finally:
                trail.append("finally")
            return "end"

        return x + n, [run(k) for k in (0, n, 9, 13)], trail

    agree(program, (X, 1), (X, 3))


def test_finally_runs_on_every_way_out():
    def program(x, n):
        trail = []

        def leave(how):
            for i in range(3):
                try:
                    if how == "break":
                        break
                    if how == "continue":
                        continue
                    if how == "return":
                        return "returned"
                    if how == "raise":
                        raise ValueError(i)
                finally:
                    trail.append((how, i))
            return "end"

        results = [leave(how) for how in ("break", "continue", "return", "nothing")]
        try:
            leave("raise")
        except ValueError as error:
            results.append(error.args)
        return x + n, results, trail

    agree(program, (X, 1), (X, 2))


def test_finally_can_override_the_result_and_swallow_the_exception():
    def returns_twice(n):
        try:
            return n
        finally:
            n += 1
            if n > 2:
                return "override"

    def swallows(n):
        while True:
            try:
                raise ValueError(n)
            finally:
                break
        return "swallowed"

    def program(x, n):
        return x + n, returns_twice(n), swallows(n)

    agree(program, (X, 1), (X, 2))


def test_nested_handlers_and_reraise():
    def program(x, n):
        trail = []
        try:
            try:
                try:
                    fail(n)
                except ValueError:
                    trail.append("inner")
                    raise
                finally:
                    trail.append("inner finally")
            except KeyError as error:
                trail.append("middle")
                raise RuntimeError("changed") from error
        except RuntimeError as error:
            trail.append((str(error), repr(error.__cause__), error.__suppress_context__))
        except ValueError as error:
            trail.append((str(error), error.__cause__, error.__context__))
        except Exception as error:
            trail.append(type(error).__name__)
        return x + n, trail

    agree(program, (X, 0), (X, 1), (X, 4))


def test_causes_and_contexts():
    def program(x, n):
        seen = []

        def look(error):
            cause, context = error.__cause__, error.__context__
            seen.append((repr(error), repr(cause), repr(context), error.__suppress_context__))

        for way in range(6):
            try:
                try:
                    raise ValueError(n)
                except ValueError as first:
                    if way == 0:
                        raise KeyError(way)
                    if way == 1:
                        raise KeyError(way) from None
                    if way == 2:
                        raise KeyError(way) from first
                    if way == 3:
                        raise KeyError(way) from OSError
                    if way == 4:
                        [][n]
                    raise first
            except Exception as second:
                look(second)
        return x + n, seen

    agree(program, (X, 1), (X, 2))


def test_contexts_do_not_go_in_circles():
    def program(x, n):
        a, b = ValueError("a"), KeyError("b")
        try:
            try:
                try:
                    raise a
                except ValueError:
                    raise b
            except KeyError:
                raise a
        except ValueError as error:
            return x + n, repr(error.__context__), repr(error.__context__.__context__), error is a

    agree(program, (X, 1), (X, 2))


def test_the_name_of_a_caught_exception_is_unbound_afterwards():
    def program(x, n):
        error = "before"
        try:
            raise ValueError(n)
        except ValueError as error:
            kept = error
        try:
            error
        except UnboundLocalError as unbound:
            return x + n, kept.args, str(unbound)

    agree(program, (X, 1), (X, 2))


def test_wrong_raises_and_handlers():
    def program(x, n):
        texts = []
        for way in range(5):
            try:
                if way == 0:
                    raise n
                if way == 1:
                    raise
                if way == 2:
                    raise ValueError from 3
                if way == 3:
                    raise int
                try:
                    raise ValueError
                except n:
                    pass
            except (TypeError, RuntimeError) as error:
                texts.append(str(error))
        return x + n, texts

    agree(program, (X, 1), (X, 2))


def test_exceptions_cross_function_calls():
    def deep(x, n):
        if n == 0:
            raise Problem("bottom")
        return deep(x * 2, n - 1) + 1

    def middle(x, n):
        try:
            return deep(x, n)
        finally:
            trail.append("middle")

    trail = []

    def program(x, n):
        del trail[:]
        try:
            return middle(x, n)
        except Problem as error:
            return x + n, error.code, list(trail)

    agree(program, (X, 3), (X, 0))


def test_attributes_of_exceptions():
    def program(x, n):
        error = Problem(n)
        error.extra = [n]
        error.args = ("changed", *error.args)
        error.add_note("a note")
        try:
            raise error
        except Problem as caught:
            traceback = caught.__traceback__
            same = caught is error
            return x + n, caught.args, caught.extra, caught.__notes__, same, traceback is not None, str(caught)

    agree(program, (X, 1), (X, 2))


def test_exceptions_can_be_returned_and_stored():
    def program(x, n, log):
        try:
            raise Problem(n) from KeyError("k")
        except Problem as error:
            log.append(error)
            return x + n, error

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        log = []
        result, error = compiled(X, 3, log)
        assert log == [error] and type(error) is Problem and error.code == 3
        assert error.args == ("problem 3",) and repr(error.__cause__) == "KeyError('k')"


def test_an_exception_from_outside_is_raised_and_caught():
    def program(x, error):
        try:
            raise error
        except ValueError as caught:
            return x + 1, caught is error, caught.args
        except Exception as caught:
            return x + 2, str(caught)

    agree(program, (X, ValueError(1)), (X, ValueError(2)), (X, KeyError("k")), (X, Problem(3)))


def test_what_is_being_handled():
    def program(x, n):
        seen = [sys.exc_info()]

        def look():
            seen.append((sys.exc_info()[0], repr(sys.exception())))

        try:
            raise ValueError(n)
        except ValueError:
            look()
            try:
                raise KeyError(n)
            except KeyError:
                look()
            look()
        look()
        return x + n, seen

    agree(program, (X, 1), (X, 2))


# Exceptions that leave the function


@pytest.mark.parametrize("number", [*range(5), *range(7, 13)])
def test_an_exception_that_leaves_is_the_users_own(number):
    def program(x, n, log):
        log.append("before")
        y = x + fail(n)
        log.append("after")
        return y

    raises(program, (X, number, []))


def test_chains_of_exceptions_that_leave():
    def program(x, n):
        try:
            fail(n)
        except KeyError as error:
            raise RuntimeError("first") from error
        finally:
            x.missing_attribute

    raises(program, (X, 1))
    raises(program, (X, 0))


def test_a_function_that_raised_is_compiled_once_it_does_not():
    def program(x, n):
        if n < 0:
            raise ValueError("negative")
        return x + n

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    for n in (-1, 2, -1, 2, 3):
        compare(program, compiled, (X, n))
    assert counter.frame_count == 1, "the number that changed is a symbol"


def test_effects_before_an_exception_happen_once():
    def program(x, log):
        log.append(len(log))
        raise ValueError("after the effect")

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    log = []
    for expected in ([0], [0, 1], [0, 1, 2], [0, 1, 2, 3]):
        with pytest.raises(ValueError, match="after the effect"):
            compiled(X, log)
        assert log == expected


def test_an_operation_that_refuses_its_arguments_leaves_nothing_in_the_log(caplog):
    compiled = bothways.compile(lambda x: x.t() + 1, backend="aot_eager")
    with pytest.raises(RuntimeError, match="expects a tensor with <= 2 dimensions"):
        compiled(torch.ones(2, 3, 4))
    assert not caplog.records


# What the caller is handling ---------------------------------------------------------------------------------


def fails_inside(x):
    try:
        int("a")
    except ValueError as error:
        return x + 1, error


def looks_back(x):
    try:
        [].pop()
    except IndexError as error:
        return x + (1 if error.__context__ is None else 2)


def raises_again(x):
    try:
        raise
    except (KeyError, RuntimeError) as error:
        return x * 2, str(error)


def breaks_and_fails(x):
    try:
        raise IndexError(len(x))
    finally:
        x.sum().item()


def chain_of(error):
    return [] if error is None else [repr(error), *chain_of(error.__context__)]


def handled_around(function, x):
    """What a function shows when it is called in a handler, and when it is not."""

    def shown():
        try:
            result = function(x)
        except Exception as error:
            return chain_of(error)
        return [chain_of(part) if isinstance(part, Exception) else part for part in [*result]]

    try:
        raise KeyError("outside")
    except KeyError:
        inside = shown()
    return inside, shown()


@pytest.mark.parametrize("function", [fails_inside, looks_back, raises_again, breaks_and_fails])
def test_what_the_caller_handles_is_the_context_of_what_is_raised_inside(function):
    compiled = bothways.compile(function, backend="eager")
    expected = handled_around(function, X)
    for _ in range(2):
        assert str(handled_around(compiled, X)) == str(expected)
    assert "outside" in str(expected) or function is looks_back


def test_elements_of_a_tensor_are_views_that_were_made_together():
    def change_the_last(x):
        with torch.no_grad():
            *_, last = x * 2
        last += x.sum()
        return last

    raises(change_the_last, [X.clone().requires_grad_()])
    agree(lambda x: sum(row * 2 for row in x.view(2, 2)), (X,))
