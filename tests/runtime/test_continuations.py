"""Functions that break go on: what comes before and after runs as graphs, and everything is as in plain Python."""

import contextlib
import traceback
import types
import warnings

import pytest
import torch

import bothways
from bothways.testing import CompileCounter, difference

BACKENDS = ["eager", "aot_eager", "native"]
LOG = []


@bothways.disable
def note(*what):
    """Something that cannot be captured; what it was given, in order, can be compared."""
    LOG.append(tuple(item.detach().clone() if isinstance(item, torch.Tensor) else item for item in what))
    return what[0] if what else None


@bothways.disable
def fail(message):
    LOG.append(("fail", message))
    raise ValueError(message)


def at_a_call(x):
    y = x + 1
    note("middle", y)
    return y * 2


def in_an_expression(x):
    return torch.relu(x) + note(x * 2) * (x - note(3.0))


def twice(x):
    y = x.sin()
    note("one")
    z = y.cos() + y
    note("two", z)
    return z * y


def on_the_truth_of_a_tensor(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    y = y - 1
    return y.exp()


def while_a_tensor_is_small(x):
    y = x.abs().sum()
    count = 0
    while y < 100:
        y = y * 2
        count = count + 1
    return y, count


def in_every_turn_of_a_loop(x):
    for index in range(6):
        x = x + 1
        note("turn", index)
        x = x * 0.5
    return x


def in_a_loop_over_a_list(x):
    total = x
    for factor in [1.0, 2.0, 3.0]:
        total = total + x * factor
        note(factor)
    return total


def in_nested_loops(x):
    for outer in range(3):
        for inner in range(outer):
            x = x + inner
            if inner == 1:
                note(outer, inner)
                continue
            x = x * 2
        else:
            note("else", outer)
    return x


def with_break_and_else(x):
    for index in range(10):
        x = x + index
        note(index)
        if index == 3:
            break
    else:
        x = x * 100
    return x


def under_no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = y + 1
        note(torch.is_grad_enabled())
        z = z * 3
    note(torch.is_grad_enabled())
    return y * z


def under_autocast(x):
    x = x.detach()
    y = x @ x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ x
        note(torch.is_autocast_enabled("cpu"))
        w = z @ z
    note(torch.is_autocast_enabled("cpu"))
    return y + z, w


class Manager:
    def __init__(self, name, swallows=False):
        self.name, self.swallows = name, swallows

    def __enter__(self):
        LOG.append(("enter", self.name))
        return self

    def __exit__(self, kind, error, traceback):
        LOG.append(("exit", self.name, kind))
        return self.swallows


def under_a_manager(x):
    with Manager("a") as a, Manager("b"):
        y = x + 1
        note(a.name)
        y = y * 2
    return y


def under_a_manager_that_swallows(x):
    y = x + 1
    with Manager("a", swallows=True):
        y = y * 2
        fail("inside")
        y = y * 100
    return y + 1


@contextlib.contextmanager
def scope(name):
    LOG.append(("begin", name))
    try:
        yield name
    finally:
        LOG.append(("end", name))


def under_a_generator_context(x):
    with scope("s"):
        y = x + 1
        note("inside")
        y = y * 2
    return y


def in_a_try(x):
    try:
        y = x + 1
        fail("bad")
        y = y * 100
    except ValueError as error:
        y = x + 2
        note(str(error))
        y = y * 3
    finally:
        note("finally")
        y = y - 1
    return y


def in_an_except(x):
    try:
        raise KeyError("k")
    except KeyError as error:
        y = x + 1
        note("handling", repr(error))
        y = y + 1
        try:
            fail("second")
        except ValueError as second:
            note(repr(second.__context__))
            y = y * 2
    return y


def raising_again(x):
    try:
        try:
            y = x + 1
            fail("first")
        except ValueError:
            note("again")
            raise
    except ValueError as error:
        return x * 2, str(error)
    return y


def from_a_cause(x):
    try:
        try:
            fail("cause")
        except ValueError as error:
            note(x + 1)
            raise RuntimeError("effect") from error
    except RuntimeError as error:
        return x + 1, repr(error.__cause__), error.__suppress_context__


def returning_in_finally(x):
    try:
        y = x + 1
        note("try")
        return y
    finally:
        x = x * 2
        note("finally", x)


def with_cells(x):
    count = 0

    def add(value):
        nonlocal count
        count += 1
        return value + count

    y = add(x)
    note(count)
    count = 10
    y = add(y) * 2
    note(count)
    return y, count, add(x)


def with_a_default_and_a_closure(x):
    scale = 3

    def scaled(value, by=2):
        return value * scale * by

    y = scaled(x)
    note("made")
    return scaled(y, by=5)


def helper(x, depth):
    y = x + depth
    note("helper", depth)
    if depth:
        y = helper(y, depth - 1)
    return y * 2


def in_a_callee(x):
    y = x.sin()
    z = helper(y, 2)
    return z + y


def in_a_comprehension(x):
    parts = [note(x * scale) + 1 for scale in (1.0, 2.0)]
    return sum(parts) * 2


def in_a_dictionary_comprehension(x):
    scale = 2
    parts = {name: note(x + index) * scale for index, name in enumerate("ab")}
    return parts["a"] + parts["b"], list(parts)


def produce(x):
    for index in range(3):
        y = x + index
        note("produce", index)
        yield y * 2


def in_a_generator(x):
    total = x
    for part in produce(x):
        total = total + part
    return total


def in_arguments(x):
    return torch.add(note(x + 1), note(x + 2), alpha=note(3))


def unpacking(x):
    first, *rest = note([x, x + 1, x + 2])
    a, b = rest
    return first * a - b


def starred_call(x):
    args = note([x, x + 1])
    return torch.mul(*args) + torch.add(*note((x, x)), **note({"alpha": 2}))


def chained_comparison(x):
    if 0 < note(3) < 5 and note(False) or note(True):
        return x + 1
    return x


def with_an_object(x):
    manager = Manager("m")
    manager.value = x + 1
    note(manager.name)
    manager.value = manager.value * 2
    manager.extra = [x]
    note(manager.value)
    manager.extra.append(manager.value)
    return manager.value, manager.extra


def changing_a_list(x):
    seen = []
    for index in range(3):
        seen.append(x + index)
        note(len(seen))
    return sum(seen), seen


def on_item(x):
    value = (x.sum() * 0 + 2.5).item()
    return x * value, value


def on_tolist(x):
    return [x * value for value in (x.detach() * 0 + 1).tolist()[0]]


def deleting(x):
    y = x + 1
    z = y * 2
    del y
    note("deleted")
    try:
        return y  # noqa: F821
    except UnboundLocalError as error:
        return z, str(error)


def maybe_unbound(x):
    if x.sum() > 1e9:
        late = x
    note("between")
    try:
        return late
    except UnboundLocalError as error:
        return x * 2, str(error)


def asserting(x):
    assert x.sum() < 1e9, "too large"
    y = x + 1
    assert (y > x).all()
    return y


def with_an_f_string(x):
    text = f"{note(2):>4} {(x.detach() * 0).sum()}"
    return x + 1, text


def importing(x):
    import colorsys

    y = x + 1
    return y * colorsys.ONE_THIRD


def defining_a_class(x):
    class Local:
        scale = 2

        def apply(self, value):
            return value * self.scale

    y = x + 1
    return Local().apply(y)


def asking_for_locals(x):
    y = x + 1
    names = sorted(locals())
    return y * 2, names


def marked(x):
    y = x + 1
    bothways.graph_break()
    return y * 2


def in_place_across(x):
    y = x * 1
    y.add_(1)
    note(y)
    y.mul_(2)
    note(y)
    return y + x


def views_across(x):
    y = x * 1
    window = y[0]
    note(window)
    window.add_(5)
    return y, window


class Base:
    @classmethod
    def made(cls, x):
        y = x + 1
        note("base", cls.__name__)
        return y * 2

    def doubled(self, x):
        note("doubled")
        return x * 2


class Derived(Base):
    @classmethod
    def made(cls, x):
        y = x * 3
        note("derived")
        return super().made(y) + 1

    def doubled(self, x):
        above = super()
        note("above")
        return super().doubled(x) + above.doubled(x)


def with_super(x):
    return Derived.made(x) + Derived().doubled(x)


def many_variables(x):
    a, b, c, d, e = x + 1, x + 2, x + 3, x + 4, x + 5
    note("many")
    return a * b + c * d + e


GROWING = []


def over_a_list_that_was_empty(x):
    GROWING.clear()
    note("cleared")
    GROWING.append(x)
    for item in GROWING:
        note(item)
    return item + 1


def with_a_closure_over_what_may_be_unbound(x, sign=1.0):
    if (x[0, 0] * sign > 0).item():
        known = x
    show = lambda: known  # noqa: E731
    note("asked")
    try:
        return [known, x + 1, show][-2]
    except NameError as error:
        return x - 1, str(error)


def with_both_signs(x):
    return [with_a_closure_over_what_may_be_unbound(x, sign) for sign in (1.0, -1.0, 1.0)]


PROGRAMS = [
    value
    for name, value in list(globals().items())
    if isinstance(value, types.FunctionType) and value.__code__.co_varnames[:1] == ("x",) and name != "produce"
    and value.__module__ == __name__ and value is not helper
]  # fmt: skip


def observed(function, make):
    """What a program returns or raises, the gradient of it, and what it noted, in order."""
    LOG.clear()
    x = make()
    try:
        result = function(x)
    except Exception as error:
        result = type(error), str(error)
    tensors = [part for part in _flat(result) if isinstance(part, torch.Tensor) and part.requires_grad]
    gradient = torch.autograd.grad(sum(part.sum() for part in tensors), x)[0] if tensors else None
    return result, gradient, list(LOG), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


def _flat(value):
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, (list, tuple)) else [value]


def inputs(seed, shape=(3, 3)):
    def make():
        torch.manual_seed(seed)
        return torch.randn(*shape).requires_grad_()

    return make


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_function_that_breaks_does_what_plain_python_does(program, backend):
    compiled = bothways.compile(program, backend=backend)
    for make in (inputs(0), inputs(0), inputs(3), inputs(4, (2, 2))):
        expected, got = observed(program, make), observed(compiled, make)
        assert difference(expected, got) is None, f"{difference(expected, got)}\nplain {expected}\ngot {got}"


@pytest.mark.parametrize(
    "program",
    [program for program in PROGRAMS if program is not defining_a_class],  # it is another class each time
    ids=lambda program: program.__name__,
)
def test_what_surrounds_a_break_is_captured_once(program):
    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    observed(compiled, inputs(0))
    assert counter.frame_count > 0
    observed(compiled, inputs(0))
    before = counter.frame_count
    observed(compiled, inputs(0))
    assert counter.frame_count == before


def test_a_break_in_every_turn_compiles_the_rest_once():
    counter = CompileCounter()

    def loop(x, count):
        for _ in range(count):
            x = x + 1
            note("turn")
        return x

    compiled = bothways.compile(loop, backend=counter)
    assert torch.equal(compiled(torch.zeros(2), 3000), torch.full((2,), 3000.0))  # deeper than Python's stack
    assert counter.frame_count == 2  # the first turn, and every other one


def test_an_exception_at_a_break_shows_the_users_line():
    def divide(x):
        y = x + 1
        fail("away")  # this line
        return y

    with pytest.raises(ValueError, match="away") as caught:
        bothways.compile(divide, backend="eager")(torch.ones(2))
    frames = traceback.extract_tb(caught.value.__traceback__)
    own = [frame for frame in frames if frame.filename == __file__ and frame.name == "divide"]
    assert own and "# this line" in own[-1].line


def test_a_warning_at_a_break_names_the_users_line():
    def warn(x):
        y = x + 1
        warnings.warn("look", stacklevel=1)
        return y

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bothways.compile(warn, backend="eager")(torch.ones(2))
    assert [warning.filename for warning in caught if str(warning.message) == "look"] == [__file__]


def test_what_is_called_at_a_break_is_compiled():
    counter = CompileCounter()
    compiled = bothways.compile(in_a_callee, backend=counter)
    LOG.clear()
    compiled(torch.ones(2))
    assert counter.frame_count >= 4  # around the call, and around the break of each callee


def test_a_module_called_at_a_break_is_compiled():
    class Inner(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            note("inner")
            return y + 1

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x.sin()).cos()

    counter = CompileCounter()
    model, x = Outer(), torch.randn(3)
    compiled = bothways.compile(model, backend=counter)
    assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 4


def test_fullgraph_names_the_first_break():
    with pytest.raises(bothways.errors.Unsupported, match="call_disabled") as caught:
        bothways.compile(at_a_call, fullgraph=True, backend="eager")(torch.ones(2))
    assert "note" in caught.value.break_.where.text


def test_explain_tells_of_every_part():
    LOG.clear()
    explanation = bothways.explain(twice)(torch.ones(2))
    assert explanation.graph_count == 3
    assert explanation.graph_break_count == 2
    assert [found.code for found in explanation.breaks] == ["call_disabled", "call_disabled"]
    assert len(explanation.programs) == 3


def test_texts_that_change_need_no_program_each():
    def step(x, number):
        loss = (x * number).sum()
        note(f"step {number} loss {loss.item():.3f}")
        return loss * 2

    counter = CompileCounter()
    compiled = bothways.compile(step, backend=counter)
    for number in range(2, 30):
        x = torch.ones(3) * number
        assert torch.equal(compiled(x, number), step(x, number))
    assert counter.frame_count <= 3
    assert LOG[-1] == LOG[-2] == ("step 29 loss 2523.000",)


def test_a_list_that_grows_around_breaks_needs_no_program_each():
    def collect(x):
        seen = []
        for index in range(30):
            seen.append(x + index)
            note(index)
        return sum(seen)

    counter = CompileCounter()
    compiled = bothways.compile(collect, backend=counter)
    assert torch.equal(compiled(torch.ones(2)), collect(torch.ones(2)))
    assert counter.frame_count <= 4


def test_a_loop_over_a_list_of_the_callers_that_has_grown_stands_where_it_stood():
    def program(x, values):
        values.append(5)
        found = []
        for value in values:
            found.append(note(value) * x)
        return found

    compiled = bothways.compile(program, backend="eager")
    for begun in ([], [], [1, 2], [3]):
        sides = []
        for function in (program, compiled):
            LOG.clear()
            values = list(begun)
            sides.append((function(torch.ones(2), values), values, list(LOG)))
        assert difference(*sides) is None


def test_a_long_loop_of_plain_python_is_left_to_python():
    def count(x):
        total = 0
        for number in range(1_000_000):
            total += number
        return x + total

    compiled = bothways.compile(count, backend="eager")
    assert torch.equal(compiled(torch.zeros(1)), count(torch.zeros(1)))
    assert bothways.explain(compiled).breaks[0].code == "too_long"
    assert bothways.explain(compiled).plain_from_now_on
