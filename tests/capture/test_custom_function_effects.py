"""Custom functions and the world around them: free variables, side effects, bodies that cannot be captured, errors.

A body that touches the world runs as the user's Python at its moment, inside its node, as eager runs it.
"""

import pytest
import torch
from custom_functions import BACKENDS, agree, inputs, node_of, observed
from torch.autograd import Function

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter, difference

pytestmark = pytest.mark.parametrize("backend", BACKENDS)

SEEN = []
FACTOR = 2.0
TABLE = {"factor": 2.0, "list": [1.0]}


# Free variables.


class ReadsGlobal(Function):
    @staticmethod
    def forward(ctx, x):
        return x * FACTOR

    @staticmethod
    def backward(ctx, grad):
        return grad * FACTOR


def test_a_global_that_both_bodies_read_may_change_in_between(backend, monkeypatch):
    results = []
    for function in (ReadsGlobal.apply, bothways.compile(lambda x: ReadsGlobal.apply(x), backend=backend)):
        for factor in (2.0, 5.0, 2.0):
            monkeypatch.setitem(globals(), "FACTOR", factor)
            (x,) = inputs()
            output = function(x)
            monkeypatch.setitem(globals(), "FACTOR", factor * 10)
            output.sum().backward()
            results.append((output, x.grad))
    assert difference(results[:3], results[3:]) is None


def test_a_closure_variable_that_both_bodies_read_may_change_in_between(backend):
    factor = 2.0

    class ReadsCell(Function):
        @staticmethod
        def forward(ctx, x):
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * factor

    results = []
    for function in (ReadsCell.apply, bothways.compile(lambda x: ReadsCell.apply(x), backend=backend)):
        for value in (2.0, 5.0, 2.0):
            factor = value
            (x,) = inputs()
            output = function(x)
            factor = value * 10
            output.sum().backward()
            results.append((output, x.grad))
    assert difference(results[:3], results[3:]) is None


class KeepsOutside(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.table = TABLE
        return x * TABLE["factor"] * TABLE["list"][0]

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.table["factor"] * ctx.table["list"][0]


def test_an_object_from_outside_that_ctx_keeps_may_change_in_between(backend):
    results = []
    for function in (KeepsOutside.apply, bothways.compile(lambda x: KeepsOutside.apply(x), backend=backend)):
        for value in (2.0, 5.0, 2.0):
            TABLE["factor"], TABLE["list"][0] = value, value
            (x,) = inputs()
            output = function(x)
            TABLE["factor"], TABLE["list"][0] = value * 10, value * 100
            output.sum().backward()
            results.append((output, x.grad))
    assert difference(results[:3], results[3:]) is None


def test_tensors_from_outside_are_read_when_the_bodies_run(backend):
    weight, scale = torch.ones(3), torch.full((3,), 2.0)

    class ReadsTensors(Function):
        @staticmethod
        def forward(ctx, x):
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            return grad * scale

    compiled = bothways.compile(lambda x: ReadsTensors.apply(x.sin()), backend=backend, fullgraph=True)
    for value in (1.0, 2.0, 3.0):
        weight.fill_(value)
        scale.fill_(value)
        results = []
        for function in (lambda x: ReadsTensors.apply(x.sin()), compiled):
            (x,) = inputs((3,))
            output = function(x)
            scale.mul_(2)
            output.sum().backward()
            results.append((output, x.grad))
            scale.fill_(value)
        assert difference(*results) is None
        plain = torch.ones(3)
        assert difference(compiled(plain), ReadsTensors.apply(plain.sin())) is None


def test_a_helper_that_the_backward_calls(backend):
    def helper(grad, factor):
        return grad * factor

    class Helped(Function):
        @staticmethod
        def forward(ctx, x):
            return helper(x, 2)

        @staticmethod
        def backward(ctx, grad):
            return helper(grad, 3)

    agree(lambda x: Helped.apply(x), backend)


def test_a_backward_that_uses_modules_and_builtins_is_still_traced(backend):
    class Stacked(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.rows = len(x.shape)
            return torch.stack([x, x])

        @staticmethod
        def backward(ctx, grad):
            return sum(torch.unbind(grad)[index] for index in range(ctx.rows))

    compiled = agree(lambda x: Stacked.apply(x), backend)
    assert not node_of(compiled).opaque


def test_a_variable_the_function_changed_before(backend):
    state = {"factor": 2.0}

    class ReadsState(Function):
        @staticmethod
        def forward(ctx, x):
            return x * state["factor"]

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    def program(x):
        state["factor"] += 1.0
        return ReadsState.apply(x)

    def run(function):
        state["factor"] = 2.0
        return [function(x).detach() for x in inputs() * 3], state

    assert difference(run(program), run(bothways.compile(program, backend=backend))) is None


def test_changes_that_forward_does_not_read_do_not_disturb(backend):
    counts = {"calls": 0}

    def program(x):
        counts["calls"] = 1
        SEEN.append("called")
        return ReadsGlobal.apply(x)

    agree(program, backend, seen=SEEN)


# Side effects.


class Counts(Function):
    @staticmethod
    def forward(ctx, x):
        SEEN.append(("forward", tuple(x.shape)))
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        SEEN.append(("backward", tuple(grad.shape)))
        return grad * 3


def test_effects_of_both_bodies_happen_at_their_moment(backend):
    agree(lambda x: Counts.apply(x.sin()).cos(), backend, seen=SEEN)
    agree(lambda x: Counts.apply(x), backend, lambda: [torch.ones(2)], seen=SEEN)


def test_effects_stand_in_order_with_those_of_the_program(backend):
    def program(x):
        y = Counts.apply(x)
        OTHER.append("after")
        return y

    def run(function):
        SEEN.clear(), OTHER.clear()
        (x,) = inputs()
        function(x).sum().backward()
        return list(SEEN), list(OTHER), x.grad

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        assert difference(run(program), run(compiled)) is None


OTHER = []


@pytest.mark.parametrize("moment", ["before", "after", "between"])
def test_what_forward_changes_and_the_program_reads(backend, moment):
    def program(x):
        if moment != "after":
            SEEN.append(len(SEEN))
        y = Counts.apply(x)
        if moment == "between":
            y = Counts.apply(y)
        if moment != "before":
            y = y * len(SEEN)
        return y

    agree(program, backend, seen=SEEN, fullgraph=False, captures=None)


def test_a_result_that_is_not_used_still_has_its_effects(backend):
    def program(x):
        Counts.apply(x)
        return x * 2

    agree(program, backend, seen=SEEN)
    agree(program, backend, lambda: [torch.ones(2)], seen=SEEN)


def test_effects_of_a_function_inside_another(backend):
    class Outer(Function):
        @staticmethod
        def forward(ctx, x):
            return Counts.apply(x) + 1

        @staticmethod
        def backward(ctx, grad):
            return Counts.apply(grad)

    agree(lambda x: Outer.apply(x), backend, seen=SEEN, fullgraph=False, captures=None)
    agree(lambda x: Outer.apply(x) * len(SEEN), backend, seen=SEEN, fullgraph=False, captures=None)


def test_an_argument_may_be_what_forward_changes(backend):
    def program(x, listed):
        y = Counts.apply(x)
        return y * len(listed)

    def run(function):
        results = []
        for listed in ([1, 2], SEEN, [1, 2], SEEN):
            SEEN[:] = [0]
            results.append(function(torch.ones(2), listed))
        return results

    assert difference(run(program), run(bothways.compile(program, backend=backend))) is None


def test_an_argument_that_is_changed_may_be_what_forward_reads(backend):
    state = {"factor": 2.0}

    class ReadsState(Function):
        @staticmethod
        def forward(ctx, x):
            return x * state["factor"]

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    def program(x, table):
        table["factor"] = 5.0
        return ReadsState.apply(x)

    def run(function):
        results = []
        for table in ({}, state, {}, state):
            state["factor"] = 2.0
            results.append(function(torch.ones(2), table))
        return results

    assert difference(run(program), run(bothways.compile(program, backend=backend))) is None


def test_counters_that_are_variables_or_class_attributes(backend):
    count = 0

    class CountsCalls(Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            nonlocal count
            count += 1
            CountsCalls.calls += 2
            return x * count

        @staticmethod
        def backward(ctx, grad):
            CountsCalls.calls += 1
            return grad * 3

    def program(x):
        y = CountsCalls.apply(x)
        return y * count + CountsCalls.calls

    def run(function):
        nonlocal count
        count = CountsCalls.calls = 0
        return [observed(function, inputs, []) for _ in range(4)], count, CountsCalls.calls

    assert difference(run(program), run(bothways.compile(program, backend=backend))) is None


def test_a_forward_that_changes_a_tensor_from_outside(backend):
    total = torch.zeros(2, 3)

    class Accumulates(Function):
        @staticmethod
        def forward(ctx, x):
            total.add_(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    def program(x):
        before = total * 1
        y = Accumulates.apply(x * 2)
        return before, y, total * 2

    def run(function):
        total.zero_()
        results = [observed(function, inputs, []) for _ in range(3)]
        return results, total.clone()

    assert difference(run(program), run(bothways.compile(program, backend=backend, fullgraph=True))) is None


def test_a_backward_that_keeps_books_on_ctx(backend):
    class Again(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.times = [1]
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            ctx.times.append(len(ctx.times))
            return grad * len(ctx.times)

    results = []
    for function in (Again.apply, bothways.compile(lambda x: Again.apply(x), backend=backend, fullgraph=True)):
        (x,) = inputs()
        output = function(x).sum()
        output.backward(retain_graph=True)
        output.backward(retain_graph=True)
        output.backward()
        results.append(x.grad)
    assert difference(*results) is None


def test_a_backward_that_looks_at_how_its_gradient_is_laid_out(backend):
    class Looks(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            SEEN.append("contiguous") if grad.is_contiguous() else SEEN.append("expanded")
            return grad * 3

    compiled = bothways.compile(lambda x: Looks.apply(x), backend=backend, fullgraph=True)
    for function in (Looks.apply, compiled, compiled):
        SEEN.clear()
        (x,) = inputs()
        function(x).sum().backward()
        function(x).backward(torch.ones(2, 3))
        assert SEEN == ["expanded", "contiguous"]


def test_a_backward_that_asks_whether_it_is_differentiated_again(backend):
    class AsksMode(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            SEEN.append(torch.is_grad_enabled())
            return grad * 3 * x**2

    compiled = bothways.compile(lambda x: AsksMode.apply(x).sum(), backend=backend, fullgraph=True)
    for function in (lambda x: AsksMode.apply(x).sum(), compiled, compiled):
        SEEN.clear()
        (x,) = inputs()
        torch.autograd.grad(function(x), x)
        torch.autograd.grad(function(x), x, create_graph=True)
        assert SEEN == [False, True]


# Bodies that cannot be captured.


class BreaksForward(Function):
    @staticmethod
    def forward(ctx, x):
        result = x + x
        bothways.graph_break()
        ctx.save_for_backward(result)
        return result + x

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result


class BreaksBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x + x

    @staticmethod
    def backward(ctx, grad):
        SEEN.append(float(grad.sum()))
        return grad * 3


def test_a_forward_that_cannot_be_captured_runs_as_python(backend):
    agree(lambda x: BreaksForward.apply(x).sin(), backend, fullgraph=False, captures=None)


def test_a_forward_that_cannot_be_captured_is_named_under_fullgraph(backend):
    compiled = bothways.compile(lambda x: BreaksForward.apply(x), backend=backend, fullgraph=True)
    with pytest.raises(Unsupported) as caught:
        compiled(*inputs())
    assert caught.value.break_.where.text == "bothways.graph_break()"


def test_a_backward_that_cannot_be_captured_leaves_the_forward_captured(backend):
    compiled = agree(lambda x: BreaksBackward.apply(x.sin()), backend, seen=SEEN, fullgraph=False)
    assert node_of(compiled).opaque


def test_a_backward_that_cannot_be_captured_is_named_under_fullgraph(backend):
    compiled = bothways.compile(lambda x: BreaksBackward.apply(x), backend=backend, fullgraph=True)
    with pytest.raises(Unsupported) as caught:
        compiled(*inputs())
    assert caught.value.break_.where.text == "SEEN.append(float(grad.sum()))"
    assert "BreaksBackward.backward" in caught.value.break_.where.function


def test_a_backward_that_never_runs_is_not_looked_at(backend):
    counter = CompileCounter()
    compiled = bothways.compile(lambda x: BreaksBackward.apply(x), backend=counter, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with torch.no_grad():
        compiled(*inputs())
    assert counter.frame_count == 2


def test_contexts_a_body_enters_are_left_when_looking_at_it_ends_early(backend):
    class Inside(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
                SEEN.append(float(grad.sum()))
                return grad * 3

    def program(x):
        return Inside.apply(x) @ x.t()

    agree(program, backend, seen=SEEN, fullgraph=False)
    assert not torch.is_autocast_enabled("cpu")


# Errors.


def returning(make):
    """A function of two arguments whose backward returns ``make(grad)``."""

    class Returning(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, grad):
            return make(grad)

    return Returning


WRONG = {
    "too few": lambda grad: grad,
    "too many": lambda grad: (grad, grad, grad),
    "not a tensor": lambda grad: (grad.stride(), grad),
    "a number": lambda grad: (3.0, grad),
    "another shape": lambda grad: (grad[:1, :2], grad),
    "a list": lambda grad: [grad, grad],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_gradients_raise_when_the_backward_runs(backend, name):
    function = returning(WRONG[name])

    def run(apply):
        x, y = inputs((2, 3), (2, 3))
        output = apply(x, y)
        with pytest.raises(RuntimeError) as caught:
            output.sum().backward()
        return output, str(caught.value)

    compiled = bothways.compile(lambda x, y: function.apply(x, y), backend=backend)
    expected = run(function.apply)
    for _ in range(2):
        assert difference(expected, run(compiled)) is None


RIGHT = {
    "nothing needed": lambda grad: (None, None),
    "None for one": lambda grad: (grad * 2, None),
    "Nones at the end": lambda grad: (grad, grad * 2, None, None),
}


@pytest.mark.parametrize("name", RIGHT)
def test_gradients_may_be_none(backend, name):
    function = returning(RIGHT[name])
    agree(lambda x, y: function.apply(x, y), backend, lambda: inputs((2, 3), (2, 3)))


def test_a_gradient_for_an_argument_that_is_no_tensor_raises(backend):
    class Extra(Function):
        @staticmethod
        def forward(ctx, x, factor):
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad, grad

    agree(lambda x: Extra.apply(x, 2.0), backend)


def test_an_exception_in_the_backward_is_the_users(backend):
    class Raises(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("no gradient today")

    agree(lambda x: Raises.apply(x), backend)


def test_an_exception_in_forward_is_the_users(backend):
    class Raises(Function):
        @staticmethod
        def forward(ctx, x):
            raise ValueError("no result today")

        @staticmethod
        def backward(ctx, grad):
            return grad

    def program(x):
        try:
            return Raises.apply(x)
        except ValueError as error:
            return x * len(str(error))

    agree(lambda x: Raises.apply(x), backend)
    agree(program, backend)


def test_whether_forward_raises_may_depend_on_a_variable(backend, monkeypatch):
    class Picky(Function):
        @staticmethod
        def forward(ctx, x):
            if FACTOR > 3:
                raise ValueError("too much")
            return x * FACTOR

        @staticmethod
        def backward(ctx, grad):
            return grad

    def program(x):
        try:
            return Picky.apply(x)
        except ValueError:
            return x - 1

    def noting(x):
        try:
            return NotesAndRaises.apply(x)
        except ValueError:
            return x * len(SEEN)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for factor in (5.0, 2.0, 7.0, 2.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert difference(observed(program, inputs, []), observed(compiled, inputs, [])) is None
    agree(noting, backend, seen=SEEN, fullgraph=False, captures=None)


class NotesAndRaises(Function):
    @staticmethod
    def forward(ctx, x):
        SEEN.append("raises")
        raise ValueError("noted")

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_saving_what_is_no_tensor_raises_as_in_eager(backend):
    class Saves(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(3)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    agree(lambda x: Saves.apply(x), backend)


def test_a_missing_backward_raises_when_it_is_wanted(backend):
    class Forward(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    agree(lambda x: Forward.apply(x), backend)
    agree(lambda x: Forward.apply(x), backend, lambda: [torch.ones(2)])
