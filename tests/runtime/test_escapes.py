"""Calls that were captured for nothing: the function raises, or what it does cannot be captured. None goes on for ever.

An operation that no fake kernel runs is a break at that operation; what the user's code raises is a program that only
says when, and counts as one.
"""

import traceback
import warnings

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import bothways
from bothways import config, errors
from bothways.driver import limits
from bothways.testing import RecordGraphs, difference, same

BACKENDS = ["eager", "aot_eager", "native"]
LIMIT = config.recompile_limit

library = torch.library.Library("escapes", "FRAGMENT")
library.define("double(Tensor x) -> Tensor")
library.impl("double", lambda x: x * 2, "CPU")
library.define("refused(Tensor x) -> Tensor")
library.impl("refused", lambda x: x * 3, "CPU")


def refuse(x):
    raise ValueError("the fake is wrong")


torch.library.register_fake("escapes::refused", refuse, lib=library)


@torch.library.custom_op("escapes::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    if by == 3.0:
        raise KeyError("three")
    return x * by


def outcome(function, *args):
    """What a call gives, or raises."""
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__, str(error)


def captures_of(compiled):
    return len(bothways.history(compiled))


def codes_of(compiled):
    return [found.code for found in bothways.explain(compiled).breaks]


def warned(calls):
    """The warnings that a function is plain from now on, as texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calls()
    return [str(each.message) for each in caught if each.category is errors.RecompileLimitWarning]


# An operation that no fake runs is a break.


def uses_double(x):
    y = x + 1
    z = torch.ops.escapes.double(y.relu())
    return z * 3 - y


def uses_scaled(x):
    y = x + 1
    return scaled(y, 2.0) * 3 - y


def uses_scaled_by_name(x):
    y = x + 1
    return torch.ops.escapes.scaled(y, 2.0) * 3 - y


def uses_data_of_lengths(x):
    packed = pack_padded_sequence(x + 1, torch.tensor([3, 1]), batch_first=True)
    return pad_packed_sequence(packed, batch_first=True)[0] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [uses_double, uses_scaled, uses_scaled_by_name, uses_data_of_lengths])
def test_an_operation_that_no_fake_runs_is_a_break_at_that_operation(program, backend):
    compiled = bothways.compile(program, backend=backend)
    for count in (2, 2, 2):
        x = torch.randn(count, 3, 4)
        assert same(program(x), compiled(x))
    captures = captures_of(compiled)
    assert same(program(x + 1), compiled(x + 1))
    assert captures_of(compiled) == captures, "the second call is a hit"
    x = torch.randn(2, 3, 5)
    assert same(program(x), compiled(x))
    assert "op_failed" not in codes_of(compiled)


def test_what_is_before_and_after_it_are_graphs():
    recorded = RecordGraphs()
    compiled = bothways.compile(uses_double, backend=recorded)
    x = torch.randn(4)
    assert same(uses_double(x), compiled(x))
    assert [each.ops for each in recorded] == [["add", "relu"], ["mul", "sub"]]
    assert codes_of(compiled) == ["op_unknown"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_go_through_the_parts_around_it(backend):
    lstm, head = torch.nn.LSTM(4, 5, batch_first=True), torch.nn.Linear(5, 2)

    def program(x, lengths):
        packed = pack_padded_sequence(x.tanh() * 2, lengths, batch_first=True, enforce_sorted=False)
        output, (hidden, _) = lstm(packed)
        padded, _ = pad_packed_sequence(output, batch_first=True)
        return head(hidden[-1]).sum() + padded.sin().sum()

    compiled = bothways.compile(program, backend=backend)
    weights = [*lstm.parameters(), *head.parameters()]
    for lengths in ([3, 1, 2], [1, 2, 3], [2, 3, 3]):
        x = torch.randn(3, 3, 4, requires_grad=True)
        expected, got = (function(x, torch.tensor(lengths)) for function in (program, compiled))
        assert difference(expected, got) is None
        gradients = [torch.autograd.grad(loss, [x, *weights]) for loss in (expected, got)]
        assert difference(*gradients) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_sequences_of_changing_lengths_are_captured_a_few_times(backend):
    lstm = torch.nn.LSTM(4, 5, batch_first=True)

    def program(x, lengths):
        return lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][0] * 2

    compiled = bothways.compile(program, backend=backend)
    torch.manual_seed(0)
    for _ in range(3):
        lengths = torch.randint(1, 20, (6,))
        x = torch.randn(6, int(lengths.max()), 4)
        assert same(program(x, lengths), compiled(x, lengths))
    for _ in range(20):
        lengths = torch.randint(1, 20, (6,))
        x = torch.randn(6, int(lengths.max()), 4)
        assert same(program(x, lengths), compiled(x, lengths))
    assert captures_of(compiled) <= 8
    assert warned(lambda: compiled(x, lengths)) == []


def test_a_layer_that_is_one_kernel_is_left_alone_where_it_breaks():
    lstm = torch.nn.LSTM(4, 5)

    def program(packed):
        return lstm(packed)[1][0] * 2

    compiled = bothways.compile(program, backend="eager")
    packed = pack_padded_sequence(torch.randn(3, 2, 4), torch.tensor([3, 1]))
    assert same(program(packed), compiled(packed))
    assert captures_of(compiled) == 2, "the function, and what is left of it; nothing inside of the layer"


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_such_an_operation_raises_comes_from_its_line(backend):
    def program(x, by):
        try:
            y = torch.ops.escapes.scaled(x + 1, by)
        except KeyError as error:
            own = [each for each in traceback.extract_tb(error.__traceback__) if each.name == "program"]
            return x, error.args, own[-1].lineno
        return y * 2

    compiled = bothways.compile(program, backend=backend)
    for by in (2.0, 3.0, 2.0, 3.0, 4.0):
        x = torch.randn(4)
        assert same(program(x, by), compiled(x, by))


def test_under_fullgraph_it_is_an_error_that_says_what_to_do():
    compiled = bothways.compile(uses_double, backend="eager", fullgraph=True)
    with pytest.raises(errors.Unsupported, match=r"op_unknown[\s\S]*register_fake"):
        compiled(torch.randn(3))


# An operation that raises in eager raises here.


def product(x, y):
    z = x * 2
    return z @ y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_operation_that_refuses_its_arguments_raises_as_eager_does(backend, fullgraph):
    compiled = bothways.compile(product, backend=backend, fullgraph=fullgraph)
    good, bad = (torch.randn(2, 3), torch.randn(3)), (torch.randn(2, 3), torch.randn(4))
    for args in (bad, good, bad, good):
        assert same(outcome(product, *args), outcome(compiled, *args))
    assert captures_of(compiled) == 2
    assert "op_unknown" not in codes_of(compiled)


def test_its_line_is_in_the_traceback():
    compiled = bothways.compile(product, backend="eager")
    with pytest.raises(RuntimeError) as caught:
        compiled(torch.randn(2, 3), torch.randn(4))
    lines = [entry.statement.lines[0].strip() for entry in caught.traceback if entry.name == "product"]
    assert lines[-1] == "return z @ y"


# An operation that was believed to raise, and does not.


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_whose_fake_is_wrong_is_a_break_after_the_first_call(backend):
    def program(x):
        y = x.sin() + 1
        return torch.ops.escapes.refused(y) * y

    compiled = bothways.compile(program, backend=backend)
    for size in (2, 2, 2, 3, 4, 5, 6):
        x = torch.randn(size)
        assert same(program(x), compiled(x))
    assert codes_of(compiled) == ["op_failed", "op_unknown"]
    assert len(bothways.explain(compiled).graphs) >= 2
    assert captures_of(compiled) <= 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_whose_error_is_caught_leaves_the_rest_captured(backend):
    def program(x, y):
        z = x.sin() + 1
        try:
            z = z @ y
        except RuntimeError:
            z = z.sum(1)
        return z.cos() * 2

    compiled = bothways.compile(program, backend=backend)
    fits, does_not = torch.randn(3), torch.randn(4)
    for y in (does_not, does_not, fits, does_not, fits):
        x = torch.randn(2, 3)
        assert same(program(x, y), compiled(x, y))
    assert len(bothways.explain(compiled).graphs) >= 2


def test_a_callee_need_not_find_out_again():
    def times(x, y):
        return (x * 2) @ y

    def program(x, y):
        try:
            z = times(x, y)
        except RuntimeError:
            z = x
        return z + 1

    compiled = bothways.compile(program, backend="eager")
    y = torch.randn(100)

    def calls():
        for size in range(1, 30):
            x = torch.randn(size)
            assert same(program(x, y), compiled(x, y))

    assert warned(calls) == []
    assert captures_of(compiled) <= 8


# Calls that raise count as programs.


def raises_by_text(x, text):
    return x * int(text)


def raises_by_key(x, key):
    return x + {"scale": 1}[key]


def raises_itself(x, text):
    if text:
        raise ValueError(text)
    return x


def given_too_many(x, name):
    return (lambda y: y)(x, **{name: 1})


RAISING = [raises_by_text, raises_by_key, raises_itself, given_too_many]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", RAISING)
def test_at_the_limit_capturing_calls_that_raise_stops_with_one_warning(program, backend):
    compiled = bothways.compile(program, backend=backend)

    def calls():
        for number in range(30):
            args = torch.ones(3), f"n{number}"
            expected = outcome(program, *args)
            assert type(expected) is tuple and same(expected, outcome(compiled, *args))

    said = warned(calls)
    assert len(said) == 1
    assert all(part in said[0] for part in (program.__name__, "config.recompile_limit", "from now on"))
    assert captures_of(compiled) == LIMIT + 1


def test_operations_that_refuse_other_arguments_each_time_count_too():
    compiled = bothways.compile(product, backend="eager", dynamic=False)

    def calls():
        for size in range(5, 40):
            args = torch.randn(2, 3), torch.randn(size)
            assert same(outcome(product, *args), outcome(compiled, *args))

    assert len(warned(calls)) == 1
    assert captures_of(compiled) == LIMIT + 1


def test_programs_from_before_stay_and_reset_begins_again():
    recorded = RecordGraphs()
    compiled = bothways.compile(raises_by_text, backend=recorded)
    x = torch.ones(3)
    assert same(compiled(x, "2"), x * 2)

    def calls():
        for number in range(20):
            assert outcome(compiled, x, f"n{number}")[0] == "ValueError"

    assert len(warned(calls)) == 1
    assert same(compiled(x, "2"), x * 2) and same(compiled(x, "5"), x * 5)
    assert len(recorded.graphs) == 1
    bothways.reset()
    assert same(compiled(x, "5"), x * 5)
    assert len(recorded.graphs) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_rest_of_a_function_after_a_break_has_the_limit_as_well(backend):
    def program(x, text):
        bothways.graph_break()
        return x * int(text)

    def caller(x, text):
        bothways.graph_break()
        return program(x, text)

    for function in (program, caller):
        compiled = bothways.compile(function, backend=backend)

        def calls(function=function, compiled=compiled):
            for number in range(30):
                args = torch.ones(3), f"n{number}"
                assert same(outcome(function, *args), outcome(compiled, *args))

        warned(calls)
        parts = [compiled.__bothways__, *(part() for part in compiled.__bothways__.history.parts)]
        assert captures_of(compiled) <= len(parts) * (LIMIT + 1)
        assert captures_of(compiled) < 30


# What else was captured again and again.


def test_a_function_that_is_redefined_all_the_time_is_plain_after_the_limit():
    def program(x, by=1):
        return x + by

    compiled = bothways.compile(program, backend="eager")

    def calls():
        for number in range(30):
            program.__defaults__ = (number,)
            assert same(compiled(torch.ones(3)), torch.ones(3) + number)

    said = warned(calls)
    assert len(said) == 1 and "other code or defaults" in said[0]
    assert captures_of(compiled) <= LIMIT + 1
    bothways.reset()
    program.__defaults__ = (7,)
    assert same(compiled(torch.ones(3)), torch.ones(3) + 7)
    assert captures_of(compiled) == 1, "it is compiled again"


def test_where_a_builtin_is_replaced_another_capture_is_tried_ever_more_seldom(monkeypatch):
    compiled = bothways.compile(lambda x, size: x * len((1, 2)) + size, backend="eager", dynamic=False)
    x = torch.ones(3)
    with monkeypatch.context() as patched:
        patched.setattr("builtins.len", lambda value: 3)
        for number in range(200):
            assert torch.equal(compiled(x, number), x * 3 + number)
    assert captures_of(compiled) <= 12
    captures = captures_of(compiled)
    for number in range(limits.LONGEST_PAUSE):
        assert torch.equal(compiled(x, 1), x * 2 + 1)
    assert captures_of(compiled) == captures + 1 and len(bothways.explain(compiled).programs) == 1


def text_for(number):
    return f"n{number}"


PROGRAMS = {
    "sizes that no program fits": (lambda x, n: x @ torch.ones(n + 7), lambda i: (torch.randn(3), i)),
    "keys that are missing": (lambda d: d["a"], lambda i: ({text_for(i): 1},)),
    "a list that is longer each time": (lambda xs: sum(xs), lambda i: ([torch.ones(2)] * (i + 1),)),
    "a number that no dtype holds": (lambda x, n: x + n, lambda i: (torch.ones(3), 2**70 + i)),
    "a view that does not fit": (lambda x, n: x.view(n, -1), lambda i: (torch.randn(97), i + 2)),
    "a dtype that is refused": (
        lambda x: torch.linalg.inv(x), lambda i: (torch.ones(i + 1, i + 1, dtype=torch.int32),)
    ),
    "a device that is not there": (lambda x, name: x.to(name), lambda i: (torch.ones(2), f"cuda:{i + 9}")),
    "an operation without a fake": (uses_double, lambda i: (torch.randn(i + 1),)),
    "a wrong fake": (lambda x: torch.ops.escapes.refused(x + 1) * 2, lambda i: (torch.randn(i + 1),)),
    "a text that is another one": (lambda x, text: x + len(text), lambda i: (torch.ones(2), text_for(i) * i)),
    "an assertion": (raises_itself, lambda i: (torch.ones(2), text_for(i))),
    "sparse results": (lambda x: torch.sparse.mm(x.to_sparse(), x.T) + 1, lambda i: (torch.randn(i + 1, 3),)),
    "lengths in a list": (
        lambda x, lengths: pack_padded_sequence(x, lengths, batch_first=True)[0] * 2,
        lambda i: (torch.randn(2, 60, 3), [i + 1, i + 1]),
    ),
    "bags of words": (
        lambda ids, offsets, weight: torch.nn.functional.embedding_bag(ids, weight, offsets).relu(),
        lambda i: (torch.arange(i + 4) % 5, torch.arange(1 + i % 3), torch.ones(5, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_function_is_captured_much_more_often_than_the_limit_says(name):
    program, arguments = PROGRAMS[name]
    compiled = bothways.compile(program, backend="aot_eager")

    def calls():
        for number in range(40):
            args = arguments(number)
            assert same(outcome(program, *args), outcome(compiled, *args))

    warned(calls)
    state = compiled.__bothways__
    functions = [state, *(part() for part in state.history.parts)]
    assert captures_of(compiled) <= (LIMIT + 1) * len(functions)
    assert captures_of(compiled) <= 2 * LIMIT


def test_a_callee_that_is_given_other_defaults_all_the_time_is_plain_after_the_limit():
    def callee(x, by=1):
        bothways.graph_break()
        return x * 2 + by

    def program(x):
        return callee(x) + 1

    compiled = bothways.compile(program, backend="eager")

    def calls():
        for number in range(30):
            callee.__defaults__ = (number,)
            x = torch.randn(3)
            assert same(program(x), compiled(x))

    said = warned(calls)
    assert len(said) == 1 and "callee runs as plain Python" in said[0].replace("<locals>.", "")
    assert captures_of(compiled) <= 3 * LIMIT


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_for_ever_other_layouts_of_gradients_is_compiled_a_few_times(create_graph):
    compilations = []

    def backward_compiler(graph, inputs):
        compilations.append(graph)
        return graph.forward

    weight = torch.randn(4, 4, requires_grad=True)

    def program(x):
        return (x @ weight).tanh()

    backend = bothways.backends.aot(fw_compiler=lambda graph, inputs: graph.forward, bw_compiler=backward_compiler)
    compiled = bothways.compile(program, backend=backend)
    x = torch.randn(3, 4, requires_grad=True)
    for step in range(1, 31):
        gradient = torch.randn(3 * step, 4)[::step]
        found = [
            torch.autograd.grad(function(x), [x, weight], gradient, create_graph=create_graph)
            for function in (program, compiled)
        ]
        assert difference(*found) is None
    assert len(compilations) <= 2 * LIMIT
