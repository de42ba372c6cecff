"""Calls in every form, closures, functions made inside, decorators, recursion, global variables, ``super``."""

import functools

import pytest
import torch
from programs import agree, compare, raises

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter

X = torch.arange(4.0)


# Binding arguments


def every_kind(a, b, /, c, d=4, *rest, e, f=6, **more):
    return a, b, c, d, rest, e, f, sorted(more.items())


CALLS = {
    "positional": lambda n: every_kind(1, 2, n, e=5),
    "all positional": lambda n: every_kind(1, 2, 3, n, 5, 6, e=7),
    "keywords": lambda n: every_kind(1, n, c=3, e=5, d=0),
    "more keywords": lambda n: every_kind(1, 2, 3, e=n, g=7, a=8, b=9),
    "star": lambda n: every_kind(*(1, 2), *[n, 4, 5], e=6),
    "two stars": lambda n: every_kind(1, n, **{"c": 3, "e": 5}, **{"z": 0}),
    "everything": lambda n: every_kind(1, *(n, 3), 4, *range(2), e=5, **dict(q=1), f=2),
    "defaults": lambda n: (lambda a, b=n, *, c=n + 1: (a, b, c))(0),
    "given defaults": lambda n: (lambda a, b=n, *, c=n + 1: (a, b, c))(0, 1, c=2),
    "only star": lambda n: (lambda *args: args)(*"ab", n),
    "only keywords": lambda n: (lambda **kwargs: kwargs)(a=n, **{"b": 2}),
    "nothing": lambda n: (lambda: n)(),
    "through partial": lambda n: functools.partial(every_kind, 1, e=0)(2, n, f=3),
    "many": lambda n: max(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, n, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, key=lambda v: -v),
}


@pytest.mark.parametrize("form", CALLS)
def test_arguments_are_bound_as_in_python(form):
    call = CALLS[form]

    def program(x, n):
        return x + n, call(n)

    agree(program, (X, 3), (X, 4))


MISTAKES = {
    "missing": lambda: every_kind(1, 2, e=1),
    "missing two": lambda: (lambda a, b: a)(),
    "missing three": lambda: (lambda a, b, c: a)(),
    "missing keyword": lambda: every_kind(1, 2, 3),
    "too many": lambda: (lambda a, b=1: a)(1, 2, 3),
    "too many of one": lambda: (lambda a: a)(1, 2),
    "too many of none": lambda: (lambda: 0)(1),
    "too many, and a keyword": lambda: (lambda a, *, b, c=0: a)(1, 2, b=3),
    "too many, and two keywords": lambda: (lambda *, b, c: b)(1, b=3, c=4),
    "too many, and an unexpected one": lambda: (lambda a: a)(1, 2, b=3),
    "twice": lambda: (lambda a: a)(1, a=2),
    "unexpected": lambda: (lambda a: a)(a=1, b=2),
    "positional only": lambda: (lambda a, /: a)(a=1),
    "no mapping": lambda: every_kind(**3),
    "no iterable": lambda: every_kind(*3),
    "not callable": lambda: len("abc")(),
    "keyword twice": lambda: every_kind(**{"a": 1}, **{"a": 2}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_calls_raise_type_errors_that_can_be_caught(mistake):
    call = MISTAKES[mistake]

    def program(x):
        try:
            call()
        except TypeError as error:
            return x + 1, type(error), str(error)

    agree(program, (X,))


def test_a_wrong_call_that_is_not_caught_is_the_users_own():
    def program(x):
        return every_kind(x)

    (kind, name, text) = raises(program, (X,))[0]
    assert name == "TypeError" and "missing" in text


def test_parameters_of_the_compiled_function_take_every_kind():
    def program(x, /, y, *rest, scale=2, **more):
        return (x + y) * scale, rest, more

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    for args, kwargs in [((X, 1), {}), ((X, 1, 2, "a"), {}), ((X,), {"y": 3, "scale": 4, "x": 5, "more": 6})]:
        for _ in range(2):
            assert repr(compiled(*args, **kwargs)) == repr(program(*args, **kwargs))
    assert counter.frame_count == 2  # the extra arguments are passed through without being looked at


def test_changed_defaults_are_noticed():
    def helper(a, b=1, *, c=2):
        return a * b + c

    def program(x):
        return helper(x)

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    compare(program, compiled, (X,))
    helper.__defaults__ = (5,)
    compare(program, compiled, (X,))
    helper.__kwdefaults__ = {"c": 7}
    compare(program, compiled, (X,))
    helper.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        compiled(X)


def test_a_mutable_default_keeps_what_is_put_into_it():
    def helper(a, seen=[]):
        seen.append(a)
        return len(seen)

    def program(x, n):
        return x + n, helper(n)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    assert [compiled(X, n)[1] for n in (1, 1, 2)] == [1, 2, 3]
    assert helper.__defaults__ == ([1, 1, 2],)


# Closures and variables


def test_a_closure_reads_and_rebinds_its_variables():
    def program(x, n):
        total, trail = 0, []

        def add(value):
            nonlocal total
            total += value
            trail.append(total)
            return total

        add(n)
        add(n + 1)
        return x + total, trail

    agree(program, (X, 2), (X, 5))


def test_a_variable_of_an_enclosing_function_outlives_the_call():
    def make():
        count = 0

        def program(x):
            nonlocal count
            count += 1
            return x + count

        return program, lambda: count

    plain, plain_count = make()
    program, count = make()
    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(plain(X), compiled(X))
        assert plain_count() == count()


def test_unbound_variables_raise_as_in_python():
    def program(x, n):
        raised = []

        def inner():
            return later  # noqa: F821

        try:
            inner()
        except NameError as error:
            raised.append((type(error), str(error)))
        later = n
        raised.append(inner())
        del later
        for read in (inner, lambda: missing_everywhere):  # noqa: F821
            try:
                read()
            except NameError as error:
                raised.append((type(error), str(error)))
        try:
            if n < 0:
                local = 1
            local
        except UnboundLocalError as error:
            raised.append(str(error))
        return x + n, raised

    agree(program, (X, 1), (X, 2))


def test_functions_made_in_a_loop_share_its_variable():
    def program(x, n):
        late = [lambda: i for i in range(n)]
        early = [lambda i=i: i for i in range(n)]
        return x + n, [f() for f in late], [f() for f in early]

    agree(program, (X, 3), (X, 2))


def test_a_function_made_inside_can_be_returned():
    def program(x, n):
        y = x * n

        def inner(z, scale=n, *, shift=1):
            return y + z * scale + shift

        return inner

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    plain_made, made = program(X, 3), compiled(X, 3)
    assert torch.equal(plain_made(X), made(X))
    assert torch.equal(plain_made(X, 2, shift=5), made(X, 2, shift=5))
    assert made.__name__ == "inner" and made.__defaults__ == (3,) and made.__kwdefaults__ == {"shift": 1}


def test_annotations_of_a_function_made_inside_are_kept():
    def program(x):
        y = x + 1

        def inner(a: int, *, b: str = "b") -> float:
            return y

        return inner

    made = bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert made.__annotations__ == {"a": int, "b": str, "return": float}


def test_a_function_from_outside_is_noticed_when_it_changes():
    def double(v):
        return v * 2

    def triple(v):
        return v * 3

    def program(x, f):
        return f(x)

    agree(program, (X, double), (X, triple), (X, lambda v: v - 1))


# Global variables

STEP = 2
COUNTER = 0
REMOVED = 1


def test_global_variables_are_read_and_guarded(monkeypatch):
    def program(x):
        return x + STEP

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    compare(program, compiled, (X,))
    monkeypatch.setitem(globals(), "STEP", 5)
    compare(program, compiled, (X,))


def test_global_variables_are_written(monkeypatch):
    monkeypatch.setitem(globals(), "COUNTER", 0)

    def program(x):
        global COUNTER
        COUNTER += 1
        before = COUNTER
        COUNTER *= 10
        return x + before

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for expected in (1, 11, 111):
        assert torch.equal(compiled(X), X + expected)
        assert COUNTER == expected * 10


def test_global_variables_are_deleted(monkeypatch):
    def program(x):
        global REMOVED
        kept = REMOVED
        del REMOVED
        try:
            REMOVED
        except NameError as error:
            return x + kept, str(error)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        monkeypatch.setitem(globals(), "REMOVED", 3)
        result, text = compiled(X)
        assert torch.equal(result, X + 3) and text == "name 'REMOVED' is not defined"
        assert "REMOVED" not in globals()


def test_a_builtin_shows_again_when_its_global_is_deleted():
    def program(x, n):
        global max
        max = lambda *values: "hidden"
        hidden = max(1, n)
        del max
        try:
            del max
        except NameError as error:
            return x + n, hidden, max(1, n), str(error)  # noqa: F821

    agree(program, (X, 3), (X, 4))
    assert "max" not in globals()


def test_a_builtin_that_a_global_hides_is_noticed(monkeypatch):
    def program(x):
        return x + abs(-2)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    compare(program, compiled, (X,))
    monkeypatch.setitem(globals(), "abs", lambda v: 100)
    compare(program, compiled, (X,))


# Decorators and recursion


def test_decorators_apply_inside_the_function():
    def plus(amount):
        def decorate(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs) + amount

            return wrapper

        return decorate

    @plus(10)
    def outside(v):
        return v * 2

    def program(x, n):
        @plus(n)
        @plus(1)
        def inside(v, w=2):
            """Doubles."""
            return v * w

        return inside(x), inside(x, w=3), outside(x), inside.__name__, inside.__doc__

    agree(program, (X, 2), (X, 3))


def test_recursion_follows_python_values():
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    def program(x, n):
        def fib(k):
            return k if k < 2 else fib(k - 1) + fib(k - 2)

        return power(x, n), fib(n)

    agree(program, (X, 3), (X, 6))


def test_recursion_without_end_is_a_break():
    def forever(x):
        return forever(x + 1)

    with pytest.raises(Unsupported) as caught:
        bothways.compile(forever, backend="eager", fullgraph=True)(X)
    assert caught.value.break_.code == "too_deep"


# Methods and super


class Base:
    scale = 2

    def __init__(self, n):
        self.n = n

    def apply(self, x):
        return x * self.scale

    @classmethod
    def make(cls, n):
        return cls(n)

    @classmethod
    def kind(cls):
        return cls.__name__

    @staticmethod
    def shift(x):
        return x + 1

    @property
    def twice(self):
        return self.n * 2


class Derived(Base):
    scale = 3

    def __init__(self, n, m):
        super().__init__(n)
        self.m = m

    def apply(self, x):
        method = super().apply
        parts = [super(Derived, self).apply(x) for _ in range(2)]
        return method(x) + parts[1] + self.m

    @classmethod
    def make(cls, n):
        made = super().make.__func__(lambda k: cls(k, 1), n)
        return made

    @property
    def twice(self):
        return super().twice + self.__hidden(1)

    def kinds(self):
        return super().kind(), Base.kind(), type(self).kind()

    def __hidden(self, v):
        return v

    def __repr__(self):
        return f"Derived({self.n}, {self.m})"


def test_methods_and_super():
    def program(x, n):
        it = Derived(n, n + 1)
        bound = it.apply
        return bound(x), Derived.apply(it, x), it.twice, it.shift(x), Derived.make(n), Base.make(n).n, it.kinds()

    agree(program, (X, 2), (X, 3))


def test_super_of_something_unrelated_is_a_type_error():
    def program(x):
        try:
            super(Derived, 3).apply(x)
        except TypeError as error:
            return x + 1, str(error)

    agree(program, (X,))


def test_callable_objects_and_bound_methods_are_called():
    class Adder:
        def __init__(self, n):
            self.n = n

        def __call__(self, x, *, times=1):
            return x + self.n * times

    bound = Adder(2).__call__

    def program(x, f):
        return f(x), f(x, times=2), bound(x, times=3), f.__call__(x)

    agree(program, (X, Adder(1)), (X, Adder(5)))
    bound.__self__.n = 7
    agree(program, (X, Adder(1)))
