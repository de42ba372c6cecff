"""``bothways.explain(fn)(*args)``: what one reads about a compiled call."""

import pytest
import torch
from torch import nn

import bothways

X = torch.arange(4.0)
LAST = None


def program(x, scale, log):
    global LAST
    LAST = scale
    log.append(scale)
    return torch.relu(x) * scale


def test_a_plain_function_is_compiled_for_the_occasion():
    explanation = bothways.explain(program)(X, 2, [])
    assert torch.equal(explanation.result, X * 2)
    assert explanation.name == "program"
    assert (explanation.graph_count, explanation.graph_break_count, explanation.op_count) == (1, 0, 2)


def test_it_shows_graph_guards_effects_and_program():
    text = bothways.explain(program)(X, 2, []).details
    assert "program: 1 program, 2 operations, 0 breaks" in text
    assert "Graph:" in text and "torch.relu" in text
    assert "Guards:" in text and "L['scale'] == 2" in text
    assert "Effects:" in text and "log.append(scale)" in text and "['LAST'] = scale" in text
    assert "Program:" in text and "return" in text


def test_each_guard_stands_beside_the_line_that_caused_it():
    text = bothways.explain(program)(X, 2, []).details
    line = next(line for line in text.split("\n") if "L['x'].dtype" in line)
    assert line.endswith("return torch.relu(x) * scale")


def test_a_compiled_function_tells_its_history():
    compiled = bothways.compile(program)
    compiled(X, 2, [])
    compiled(X, 3, [])
    explanation = bothways.explain(compiled)(X, 3, [])
    assert len(explanation.programs) == 2
    assert len(explanation.recompilations) == 1
    text = explanation.details
    assert "Recompilations:" in text
    assert "L['scale'] == 2" in text.partition("Recompilations:")[2]


def test_breaks_say_where_why_and_what_to_do():
    def breaks(x):
        return x + 1 if x.sum() > 0 else x

    explanation = bothways.explain(breaks)(X)
    assert torch.equal(explanation.result, X + 1)
    assert explanation.graph_break_count == 1
    assert explanation.break_reasons[0].code == "tensor_branch"
    text = explanation.details
    assert "2 programs" in text and "1 break" in text
    assert "return x + 1 if x.sum() > 0 else x" in text
    assert "hint:" in text


def test_an_exception_is_shown_as_a_break_of_later_explanations():
    def checked(x, n):
        if n < 0:
            raise ValueError(n)
        return x * n

    compiled = bothways.compile(checked)
    with pytest.raises(ValueError, match="-1"):
        bothways.explain(compiled)(X, -1)
    text = bothways.explain(compiled)(X, 2).details
    assert "exception_escapes" in text
    assert "raise ValueError(n)" in text


def test_modules_and_methods():
    module = nn.Linear(4, 4)
    assert bothways.explain(module)(X).op_count == 1
    assert bothways.explain(bothways.compile(module))(X).op_count == 1
    assert "Linear" in bothways.explain(module)(X).details

    class Scale:
        by = 2

        def method(self, x):
            return x * self.by

    explanation = bothways.explain(Scale().method)(X)
    assert torch.equal(explanation.result, X * 2)
    assert explanation.op_count == 1


def test_static_methods_and_callable_objects():
    class Scale:
        @bothways.compile
        @staticmethod
        def static(x):
            return x * 2

        def __call__(self, x):
            return x * 3

    assert bothways.explain(Scale.static)(X).op_count == 1
    assert bothways.explain(Scale())(X).op_count == 1


def test_a_program_without_tensor_operations():
    text = bothways.explain(lambda n: n + 1)(3).details
    assert "0 operations" in text
    assert "(no tensor operations)" in text


def test_says_when_the_function_runs_as_plain_python_from_now_on():
    def program(x, n):
        return x * n

    compiled = bothways.compile(program)
    with bothways.config.patch(recompile_limit=1), pytest.warns(bothways.errors.RecompileLimitWarning):
        compiled(torch.ones(2), 1)
        explanation = bothways.explain(compiled)(torch.ones(2), 2)
    assert explanation.plain_from_now_on
    assert "run as plain Python from now on" in explanation.details


def test_without_arguments_it_shows_what_has_happened_and_runs_nothing():
    calls = []

    def counted(x):
        calls.append(1)
        return x * 2

    compiled = bothways.compile(counted)
    compiled(X)
    explanation = bothways.explain(compiled)
    assert len(calls) == 1 and explanation.result is None and not explanation.has_run
    assert (explanation.graph_count, explanation.op_count) == (1, 1)
    text = explanation.details
    assert "This is what has happened so far; nothing was run for this explanation." in text
    assert "== Program 0 of counted ==" in text


def test_with_arguments_it_says_that_the_function_was_called():
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step(x):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    compiled = bothways.compile(step)
    compiled(torch.ones(3))
    explanation = bothways.explain(compiled)(torch.ones(3))
    assert explanation.has_run and torch.equal(weight.detach(), torch.full((3,), -2.0))  # one more step
    assert "The function was called once for this explanation." in explanation.details
    assert "one more step" in bothways.explain.__doc__


def test_a_plain_function_that_was_not_called_is_not_compiled():
    explanation = bothways.explain(program)
    assert not explanation.is_compiled and explanation.graph_count == 0
    assert explanation.details == (
        "program is not compiled. explain(f)(*args) compiles it and calls it once; a call of a training step is one "
        "more step."
    )


def test_a_function_that_is_disabled():
    @bothways.disable
    def disabled(x):
        return x + 1

    explanation = bothways.explain(disabled)(X)
    assert torch.equal(explanation.result, X + 1)
    assert explanation.details.endswith(
        "is not compiled: it is marked with bothways.disable. It was called once for this explanation."
    )


def test_an_explanation_can_be_called_again():
    explanation = bothways.explain(bothways.compile(program))
    first = explanation(X, 2, [])
    assert torch.equal(first.result, X * 2)
    assert torch.equal(first(X, 3, []).result, X * 3)


def test_programs_of_what_goes_on_after_a_break_say_where_they_begin():
    def breaks(x):
        y = x + 1
        bothways.graph_break()
        return y * 2

    text = bothways.explain(breaks)(X).details
    line = breaks.__code__.co_firstlineno + 2
    assert "== Program 0 of breaks ==" in text and f"== Program 1 of breaks, from line {line} on ==" in text


def test_a_break_inside_what_stands_for_code_in_c_is_one_of_the_line_that_calls_it():
    def breaks(x):
        return sorted([x[0], x[1]])

    explanation = bothways.explain(breaks)(X)
    text = str(explanation.breaks[0])
    assert f"  at {__file__}:{breaks.__code__.co_firstlineno + 1} in {breaks.__qualname__}" in text
    assert "return sorted([x[0], x[1]])" in text
    assert "bothways/capture" not in text
