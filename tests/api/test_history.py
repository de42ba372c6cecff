"""``bothways.history(fn)``: one record for each compilation, what it was for, what came of it, how long it took."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bothways
from bothways import config
from bothways.record.compilation import MOST_RECORDS, Conclusion
from bothways.testing import same

X = torch.linspace(0, 1, 90_000).reshape(300, 300)
EVERYWHERE = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


def wave(x, w):
    return (torch.relu(x @ w + 1).sin() * 2).sum()


def names(compilation):
    return [graph.name for graph in compilation.graphs]


@EVERYWHERE
def test_a_call_that_no_program_takes_is_one_record(backend):
    compiled = bothways.compile(wave, backend=backend)
    assert bothways.history(compiled) == []
    for x in (X, X, X[:100]):
        torch.testing.assert_close(compiled(x, X), wave(x, X))
    first, second = bothways.history(compiled)
    assert first.number < second.number and first.function == second.function == "wave"
    assert first.why == "the first call" and first.failed_guard is None
    assert "L['x'].shape" in second.why and second.is_recompilation and second.failed_guard in second.why
    assert all(one.conclusion is Conclusion.PROGRAM and one.backend == backend for one in (first, second))
    assert all(one.program is not None and one.source for one in (first, second))


def test_guards_stand_beside_the_lines_that_caused_them():
    compiled = bothways.compile(wave)
    compiled(X, X)
    [compilation] = bothways.history(compiled)
    [shape] = [check for check in compilation.guards if check.text == "L['x'].shape == (300, 300)"]
    assert shape.where.function == "wave" and "torch.relu" in shape.where.text


def test_each_stage_is_timed():
    compiled = bothways.compile(lambda x, w: (torch.relu(x @ w + 3).sin() * 2).sum(), backend="native")
    w = X.clone().requires_grad_()
    with config.patch(kernel_cache=False):
        loss = compiled(X, w)
        [compilation] = bothways.history(compiled)
        assert set(compilation.seconds) == {"capture", "differentiate", "lower", "build", "program"}
        before = dict(compilation.seconds)
        loss.backward()
    later = compilation.seconds
    assert all(later[stage] > before[stage] for stage in ("differentiate", "lower", "build"))
    assert later["capture"] == before["capture"], "the backward is compiled when it first runs"


def test_graphs_are_there_as_captured_joint_forward_and_backward():
    compiled = bothways.compile(wave, backend="aot_eager")
    w = X.clone().requires_grad_()
    loss = compiled(X, w)
    [compilation] = bothways.history(compiled)
    assert names(compilation) == ["captured", "joint", "forward"]
    loss.backward()
    assert names(compilation) == ["captured", "joint", "forward", "backward"]
    captured, joint, forward, backward = map(str, compilation.graphs)
    assert "torch.relu" in captured and "aten" not in captured
    assert "aten.relu.default" in joint and "aten.threshold_backward.default" in joint
    assert "aten.relu.default" in forward and "threshold_backward" not in forward
    assert "aten.threshold_backward.default" in backward and "aten.relu.default" not in backward
    assert "test_history.py" in joint and "return (torch.relu(x @ w + 1).sin() * 2).sum()" in joint


def test_joint_graphs_have_the_symbols_of_changing_sizes():
    compiled = bothways.compile(wave, backend="aot_eager", dynamic=True)
    w = X.clone().requires_grad_()
    compiled(X, w).backward()
    [compilation] = bothways.history(compiled)
    [joint, *_] = compilation.graphs_of("joint")
    assert "float32[s" in str(joint)


def test_second_derivatives_add_to_the_record():
    compiled = bothways.compile(lambda x, w: ((x * w).sin() ** 3).exp().cos().sum(), backend="aot_eager")
    w = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(X, w), w, create_graph=True)
    [compilation] = bothways.history(compiled)
    before = len(compilation.graphs)
    gradient.sum().backward()
    assert len(compilation.graphs) > before
    assert len(bothways.history(compiled)) == 1


def test_generated_sources_and_kernels_are_those_of_their_compilation():
    compiled = bothways.compile(wave, backend="native")
    compiled(X, X)
    compiled(X, X[:, :200])
    for compilation in bothways.history(compiled):
        [forward] = compilation.generated
        assert forward.name == "forward" and "Python" in forward.texts and compilation.kernels == 1


def broken(x):
    y = x * 2
    bothways.graph_break()
    return y + 1


@EVERYWHERE
def test_what_goes_on_after_a_break_is_among_them(backend):
    compiled = bothways.compile(broken, backend=backend)
    assert same(compiled(X), broken(X)) and same(compiled(X), broken(X))
    start, rest = bothways.history(compiled)
    assert (start.from_line, start.function) == (None, "broken")
    assert rest.from_line is not None and rest.function == f"broken, from line {rest.from_line} on"
    assert rest.why == f"after a break it goes on from line {rest.from_line}: the first call"
    assert [found.code for found in start.breaks] == ["graph_break"] and rest.breaks == []


def test_functions_that_are_called_at_a_break_are_among_them():
    def inner(x):
        return broken(x) * 3

    def outer(x):
        return inner(x) + 1

    compiled = bothways.compile(outer, backend="eager")
    assert same(compiled(X), outer(X))
    assert {one.name for one in bothways.history(compiled)} == {outer.__qualname__, inner.__qualname__, "broken"}


def test_modules_methods_and_static_methods_have_one():
    module = bothways.compile(nn.Linear(4, 4), backend="eager")
    module(torch.ones(2, 4))
    assert [one.function for one in bothways.history(module)] == ["Linear.__call__"]

    class Scale:
        by = 2

        @bothways.compile
        def decorated(self, x):
            return x * self.by

        def method(self, x):
            return x * self.by

        @bothways.compile
        @staticmethod
        def static(x):
            return x * 3

        def __call__(self, x):
            return x * 4

    scale = Scale()
    bound, called = bothways.compile(scale.method), bothways.compile(scale)
    for function in (scale.decorated, bound, called, Scale.static):
        function(torch.ones(3))
        assert len(bothways.history(function)) == 1


@pytest.mark.parametrize(
    "target, name", [(wave, "wave"), (nn.Linear(2, 2), "Linear"), (len, "len"), (3, "int"), (nn.Linear, "Linear")]
)
def test_what_is_not_compiled_has_none(target, name):
    with pytest.raises(TypeError, match=f"{name} is not compiled: bothways.history takes what bothways.compile"):
        bothways.history(target)


def test_plain_python_is_a_record_with_its_reason():
    def numbers(x):
        yield x + 1

    compiled = bothways.compile(numbers)
    list(compiled(X))
    [compilation] = bothways.history(compiled)
    assert compilation.conclusion is Conclusion.PLAIN and "is a generator" in compilation.reason
    assert compilation.program is None and compilation.guards == () and compilation.graphs == []
    assert compilation.was_captured


def test_a_function_that_raises_is_remembered_by_its_guards():
    def checked(x, n):
        if n < 0:
            raise ValueError(n)
        return x * n

    compiled = bothways.compile(checked, backend="eager")
    with pytest.raises(ValueError, match="-1"):
        compiled(X, -1)
    [compilation] = bothways.history(compiled)
    assert compilation.conclusion is Conclusion.PLAIN and "ValueError" in compilation.reason
    assert any("L['n']" in check.text for check in compilation.guards)


def test_what_a_backend_raises_is_in_the_record():
    def failing(graph, inputs):
        raise ZeroDivisionError("no")

    compiled = bothways.compile(wave, backend=failing)
    with pytest.raises(bothways.errors.BackendFailed):
        compiled(X, X)
    [compilation] = bothways.history(compiled)
    assert compilation.conclusion is Conclusion.FAILED and "ZeroDivisionError: no" in compilation.reason
    assert compilation.graphs == [] and compilation.graph is None, "nothing is kept of what may fail at every call"


def test_a_call_that_is_traced_is_a_record_that_was_not_captured():
    compiled = bothways.compile(lambda x: x * 2, backend="eager")
    with FlopCounterMode(display=False), pytest.warns(bothways.errors.TracedWarning):
        compiled(X), compiled(X)
    [compilation] = bothways.history(compiled)
    assert not compilation.was_captured and [found.code for found in compilation.breaks] == ["torch_mode"]


def test_a_record_prints_what_why_and_how_long():
    compiled = bothways.compile(wave, backend="eager")
    compiled(X, X)
    [compilation] = bothways.history(compiled)
    lines = str(compilation).split("\n")
    assert lines[0] == f"compilation {compilation.number} of wave: a program"
    assert lines[1] == "    why: the first call" and lines[2].startswith("    time: capture ")


def test_explain_shows_the_joint_graph_and_the_time_of_each_stage():
    compiled = bothways.compile(wave, backend="aot_eager")
    w = X.clone().requires_grad_()
    compiled(X, w).backward()
    text = bothways.explain(compiled).details
    assert "Compiling took: capture " in text and "differentiate " in text
    joint = text.partition("Joint graph:")[2].partition("Runs:")[0]
    assert "aten.mm.default(primals_0, primals_1)" in joint and "# gradients" in joint
    assert "Compiled because:\n    the first call" in text


def test_a_reset_begins_a_new_history():
    compiled = bothways.compile(wave, backend="eager")
    compiled(X, X)
    [old] = bothways.history(compiled)
    bothways.reset()
    assert bothways.history(compiled) == [] and old.program is None
    compiled(X, X)
    assert len(bothways.history(compiled)) == 1


def test_records_keep_nothing_alive_but_texts_and_the_captured_graph():
    class Owner:
        pass

    compiled = bothways.compile(lambda x, owner: (x * owner.w).sin().sum(), backend="aot_eager")
    owner = Owner()
    owner.w = torch.ones(300, 300, requires_grad=True)
    x = X.clone()
    compiled(x, owner).backward()
    records = bothways.history(compiled)
    program = records[0].program
    assert "sin" in str(records[0].graphs_of("joint")[0])
    references = [weakref.ref(thing) for thing in (x, owner, owner.w, compiled, program)]
    del x, owner, compiled, program
    gc.collect()
    assert [reference() for reference in references] == [None] * 5
    assert "sin" in str(records[0].graphs_of("joint")[0]) and records[0].program is None


def test_a_function_that_is_captured_in_vain_for_ever_keeps_a_bounded_history():
    compiled = bothways.compile(wave, backend="eager")
    compiled(X, X)
    state, [first] = compiled.__bothways__, bothways.history(compiled)
    for _ in range(MOST_RECORDS + 10):
        state.history.add(type(first)("wave", "eager"))
    records = bothways.history(compiled)
    assert len(records) == MOST_RECORDS and records[0] is first, "its program is in use"
