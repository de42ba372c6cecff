"""Callables made from functions: ``partial``, ``partialmethod``, ``wraps``, caches."""

import functools

import pytest
import torch
from programs import agree, compare

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter, same

X = torch.arange(4.0)


def scaled_sum(a, b, scale=1):
    """The sum, scaled."""
    return (a + b) * scale


def test_partials_are_made_and_called():
    def program(x):
        add_x = functools.partial(scaled_sum, x, scale=2)
        nested = functools.partial(add_x, 3)
        return add_x(1), nested(), nested(scale=5), nested.args[1], nested.keywords, nested.func is scaled_sum

    agree(program, (X,))


def test_partials_from_outside():
    def program(x, p):
        return p(x), p(x, scale=4), p.args, p.keywords

    counter = agree(
        program,
        (X, functools.partial(scaled_sum, 1)),
        (X, functools.partial(scaled_sum, 2)),
        (X, functools.partial(scaled_sum, 1, scale=3)),
    )
    assert counter.frame_count == 3


def test_a_returned_partial_works():
    def program(x):
        return functools.partial(scaled_sum, x + 1, **{"scale": 2})

    made = bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert torch.equal(made(1), (X + 2) * 2)


def test_partials_carry_attributes():
    def program(x, p):
        p.calls = getattr(p, "calls", 0) + 1
        made = functools.partial(p, 1)
        made.tag = x + 1
        return made(x), made.tag, hasattr(made, "calls"), p.__name__, made

    p = functools.update_wrapper(functools.partial(scaled_sum), scaled_sum)
    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for calls in (1, 2):
        out = compiled(X, p)
        assert p.calls == calls and out[2] is False and out[3] == "scaled_sum"
        assert out[4].tag is out[1] and torch.equal(out[4](X), X + 1)


def test_the_keywords_of_a_partial_are_its_own_dictionary():
    def program(x, p):
        p.keywords["scale"] = 4
        made = functools.partial(p, x)
        made.keywords.update(scale=x + 1)
        kept = made.keywords
        return p(x, 1), made(2), made.args, kept, made.keywords is kept, p.keywords is p.keywords

    held = functools.partial(scaled_sum, scale=3)
    for p in (held, held, functools.partial(scaled_sum, scale=5)):
        agree(program, (X, p))
    agree(lambda x, p: p.keywords.clear() or p(x, 1), (X, functools.partial(scaled_sum, scale=5)))


def test_a_partial_and_its_keywords_are_returned_as_they_belong():
    def program(x):
        made = functools.partial(scaled_sum, 1, scale=x)
        made.keywords["b"] = 2
        made.own = made.keywords
        return made.keywords, made

    for backend in ("eager", "native"):
        keywords, made = bothways.compile(program, backend=backend, fullgraph=True)(X)
        assert made.keywords is keywords is made.own and torch.equal(made(), 3 * X)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_keywords_of_a_partial_that_are_no_text_leave_with_it(backend):
    """A dictionary takes them; only a call with them is refused, and to make another partial of it is none."""

    def program(x):
        made = functools.partial(scaled_sum, x, scale=x)
        made.keywords[3] = made.keywords[None] = x + 1
        again = functools.partial(made, 2, scale=4)
        try:
            made(1)
        except TypeError as error:
            return str(error), made, again, again.args, again.keywords

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for x in (X, X, X + 1):
        expected, found = program(x), compiled(x)
        assert same(expected[3:], found[3:]) and list(found[4]) == ["scale", 3, None] and found[4]["scale"] == 4
        assert same(expected[1].keywords, found[1].keywords) and list(found[1].keywords) == ["scale", 3, None]
        assert found[0] == expected[0] and found[2].keywords is found[4] and found[2].func is scaled_sum


def test_a_partial_whose_keywords_hold_themselves():
    def program(x):
        made = functools.partial(scaled_sum, x)
        made.keywords.update(b=1, scale=made.keywords)
        return made

    made = bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert made.keywords["scale"] is made.keywords and list(made.keywords) == ["b", "scale"]


def test_keywords_that_are_no_names_raise_as_in_plain_python():
    def program(x, p):
        p.keywords[3] = 4
        return p(x, 1)

    compiled = bothways.compile(program, backend="eager")
    for function in (program, compiled, compiled):
        with pytest.raises(TypeError, match="keywords must be strings"):
            function(X, functools.partial(scaled_sum))


def test_attributes_of_a_partial_by_its_dictionary():
    def program(x, p):
        p.__dict__["tag"] = x + 1
        vars(p).setdefault("calls", 0)
        return p.tag, "tag" in p.__dict__, hasattr(p, "__dict__"), list(vars(functools.partial(p))), len(p.__dict__)

    agree(program, (X, functools.partial(scaled_sum)))


def test_partial_methods():
    class Gauge:
        def set(self, value, unit="m"):
            return value, unit, self.name

        name = "g"
        zero = functools.partialmethod(set, 0, unit="cm")

    def program(x, gauge):
        return x + gauge.zero()[0], gauge.zero(unit="mm"), gauge.zero()

    agree(program, (X, Gauge()))


def test_wraps():
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) + 1

        return wrapper

    outside = logged(scaled_sum)

    def program(x):
        @logged
        def inside(y):
            """Twice."""
            return y * 2

        names = inside.__name__, inside.__doc__, outside.__name__, outside.__doc__
        return outside(x, 1), inside(x), names, outside.__wrapped__(x, 1)

    agree(program, (X,))


def test_cached_functions_that_compute_constants():
    @functools.lru_cache(maxsize=None)
    def padding(size, multiple):
        return -size % multiple

    def program(x, multiple):
        return torch.nn.functional.pad(x, (0, padding(x.shape[0], multiple)))

    agree(program, (X, 3), (X, 5))


def test_what_a_cached_function_gives_is_the_very_object():
    @functools.cache
    def table(n):
        return [n]  # every caller gets the same list

    def program(x):
        table(3).append(len(table(3)))
        return x + table(3)[0], table(3)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for length in (2, 3, 4):
        result, held = compiled(X)
        assert torch.equal(result, X + 3) and held is table(3) and len(held) == length


def test_cached_functions_that_do_more_stop_the_capture():
    calls = []

    @functools.cache
    def table(n):
        calls.append(n)
        return [n]

    def program(x):
        return x + table(3)[0]

    with pytest.raises(Unsupported, match="cached function table"):
        bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert torch.equal(bothways.compile(program, backend="eager")(X), X + 3) and calls == [3]


def test_a_single_dispatch_function_runs_as_plain_python():
    @functools.singledispatch
    def kind(value):
        return 0

    @kind.register(int)
    def _(value):
        return 1

    def program(x):
        return x + kind(3)

    compiled = bothways.compile(program, backend=CompileCounter(), fullgraph=False)
    compare(program, compiled, (X,))
