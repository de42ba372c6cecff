"""How each graph runs: in kernels, as ATen operations, or as it was captured, and the reason when not in kernels."""

import pytest
import torch
from torch import nn

import bothways
from bothways import config
from bothways.backends import native
from bothways.errors import NoCompiler
from bothways.record.outcomes import Way

X = torch.linspace(0, 1, 90_000).reshape(300, 300)


def told(function, *args, backend="native", backward=False, **options):
    """What the explanation of a function says of its graphs, after one call, and how each of them runs."""
    compiled = bothways.compile(function, backend=backend, **options)
    expected, result = function(*args), compiled(*args)
    torch.testing.assert_close(result, expected)
    if backward:
        result.sum().backward()
    line = bothways.explain(compiled).details.split("\n")[1]
    return line, [str(piece) for compilation in bothways.history(compiled) for piece in compilation.pieces]


def test_kernels_are_counted_with_the_operations_in_them():
    def function(x, w):
        return torch.relu(x @ w + 1).sin() * 2

    line, pieces = told(function, X, X)
    assert line == "1 graph: 1 compiled (4 of 5 operations in 1 kernel)."
    assert pieces == ["forward: 4 of 5 operations in 1 kernel"]


def test_the_backward_is_told_when_it_has_run():
    def function(x, w):
        return torch.relu(x @ w + 1).sin() * 2

    w = X.clone().requires_grad_()
    compiled = bothways.compile(function, backend="native")
    result = compiled(X, w)
    [outcome] = bothways.explain(compiled).outcomes
    assert [piece.name for piece in outcome.pieces] == ["forward"]
    result.sum().backward()
    assert [piece.name for piece in outcome.pieces] == ["forward", "backward"]
    assert all(piece.way is Way.KERNELS for piece in outcome.pieces)


def test_what_was_compiled_by_another_process_is_counted_all_the_same():
    def function(x):
        return (x.sin() * 3).cos() + 0.25

    first, _ = told(function, X)
    bothways.reset()
    again, _ = told(function, X)  # from the cache on disk
    assert again == first == "1 graph: 1 compiled (4 of 4 operations in 1 kernel)."


def test_a_small_graph_stays_as_captured():
    def function(x):
        return x + 1

    with config.patch(kernels_for_small_graphs=False):
        line, pieces = told(function, torch.ones(3))
    assert line == "1 graph: 1 as captured (small: ATen is as fast)."
    assert pieces == ["graph: 1 operation as captured (small: ATen is as fast)"]
    with config.patch(kernels_for_small_graphs=True):
        assert told(function, torch.ones(3))[0] == "1 graph: 1 compiled (1 of 1 operation in 1 kernel)."


def test_a_graph_in_which_nothing_is_for_kernels():
    def function(x):
        return x @ x @ x

    assert told(function, X)[0] == "1 graph: 1 as ATen operations (nothing in it is for kernels)."


def test_complex_numbers_are_left_to_aten():
    def function(x):
        return torch.view_as_real(x.to(torch.complex64).exp()).sum()

    assert told(function, X)[0] == "1 graph: 1 compiled (1 of 4 operations in 1 kernel)."


def test_complex_inputs_are_changed_by_aten():
    def function(x):
        return x.mul_(2j)

    line, _ = told(function, X.to(torch.complex64))  # what comes out is compared in lower/test_native_complex.py
    assert line == "1 graph: 1 as ATen operations (kernels do not compute with complex numbers)."


def test_without_a_compiler(monkeypatch):
    def compile_graph(*args, **kwargs):
        raise NoCompiler("cc is not there")

    def function(x):
        return (x.sin() * 3).cos() + 0.75

    monkeypatch.setattr(native, "compile_graph", compile_graph)
    monkeypatch.setattr(native, "warn_once", lambda message: None)
    line, _ = told(function, X)
    assert line == "1 graph: 1 as ATen operations (there is no C compiler that works: cc is not there)."


def test_a_graph_that_cannot_be_lowered(monkeypatch):
    def compile_graph(*args, **kwargs):
        raise KeyError("a bug")

    def function(x):
        return (x.sin() * 3).cos() + 1.25

    monkeypatch.setattr(native, "compile_graph", compile_graph)
    monkeypatch.setattr(native, "warn_once", lambda message: None)
    line, _ = told(function, X)
    assert line.startswith("1 graph: 1 as ATen operations (it could not be lowered: KeyError: 'a bug' (test_")


def test_backends_that_compile_nothing_say_which_they_are():
    def function(x, w):
        return (x * w).sin()

    w = X.clone().requires_grad_()
    assert told(function, X, w, backend="eager")[0] == "1 graph: 1 as captured (the backend is eager)."
    line, pieces = told(function, X, w, backend="aot_eager", backward=True)
    assert line == "1 graph: 1 as ATen operations (the backend is aot_eager)."
    assert pieces[0] == "forward: 2 operations by ATen (the backend is aot_eager)"
    assert pieces[1].startswith("backward: ")


def test_a_backend_of_the_users_own():
    def as_it_is(graph, inputs):
        return graph.forward

    def own(graph, inputs):
        return lambda *values: graph.forward(*values)

    def function(x):
        return x.sin() + 1

    assert told(function, X, backend=as_it_is)[0] == (
        "1 graph: 1 as captured (the backend as_it_is gives it back as it is)."
    )
    assert told(function, X, backend=own)[0] == "1 graph: 1 compiled (by the backend own)."


def test_what_the_differentiator_does_not_express_runs_as_captured_with_its_reason():
    def function(x, w):
        return (x * w).sin(), (x * w).cos() * torch.bernoulli(torch.ones(300, 300))

    w = X.clone().requires_grad_()
    line, _ = told(function, X, w)
    assert line == (
        "1 graph: 1 as captured (independent results, with random numbers or mutated inputs between them)."
    )


def test_gradients_that_are_turned_on_inside():
    def function(x, w):
        with torch.enable_grad():
            y = (x * w).sin().sum()
        return y * 2

    w = X.clone().requires_grad_()
    with torch.no_grad():
        line, pieces = told(function, X, w)
    switched = "as captured: gradients are turned on or off"
    assert line == f"1 graph: 1 compiled (4 of 6 operations in 2 kernels; {switched})."
    assert [piece for piece in pieces if "kernel" in piece] == [
        "forward: 3 of 3 operations in 1 kernel", "forward: 1 of 1 operation in 1 kernel",
    ]  # fmt: skip


def test_a_part_that_stays_as_captured_says_why():
    def function(x):
        w = torch.ones(300, requires_grad=True)
        return (x * w).sin() * 2

    line, pieces = told(function, X)
    reason = "a tensor is made that asks for its own gradient"
    assert line == f"1 graph: 1 compiled (3 of 4 operations in 1 kernel; as captured: {reason})."
    assert pieces[0] == f"part 1 of 2: 1 operation as captured ({reason})"


def test_the_users_python_in_a_backward():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            print(end="")
            return grad * 2

    def function(x, w):
        return Noisy.apply(x * w).sin()

    line, _ = told(function, X, X.clone().requires_grad_(), backward=True)
    assert line.endswith("as captured: the user's Python runs, or will in the backward).")


def test_calls_under_anomaly_mode_run_as_captured():
    def function(x, w):
        return torch.relu(x @ w + 1).sin() * 3

    with torch.autograd.set_detect_anomaly(True):
        line, _ = told(function, X, X.clone().requires_grad_())
    assert line.endswith("some calls as captured: anomaly mode, a hook or forward-mode derivatives watch autograd).")


def test_all_graphs_of_a_function_are_told_together():
    def function(x):
        y = (x * 2).sin()
        bothways.graph_break()
        y = y + 1
        bothways.graph_break()
        return y @ y.t() @ y

    with config.patch(kernels_for_small_graphs=False):
        line, _ = told(function, X[:2].double())  # whose products are ATen's
    assert line == (
        "3 graphs: 1 compiled (2 of 2 operations in 1 kernel), 1 as ATen operations (nothing in it is for kernels), "
        "1 as captured (small: ATen is as fast)."
    )


def test_a_program_has_the_outcome_of_its_graph():
    def function(x):
        return (x * 2).sin()

    compiled = bothways.compile(function)
    compiled(X)
    [compilation] = bothways.history(compiled)
    assert compilation.program is not None and compilation.kernels == 1
    assert "Runs:\n    forward: 2 of 2 operations in 1 kernel" in bothways.explain(compiled).details


def test_outcomes_are_logged_as_they_happen(caplog):
    model = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3)).double()  # whose products are ATen's

    def function(x):
        return model(x).log_softmax(-1)

    with config.patch(logs="outcomes"):
        told(function, X.double(), backward=True)
    assert [line.partition(" operations")[0].rpartition(" of ")[0] for line in caplog.messages] == [
        f"outcomes: {function.__qualname__}: forward: 4",
        f"outcomes: {function.__qualname__}: backward: 14",
    ]


def test_what_is_plain_from_now_on_is_logged_with_its_reason(caplog):
    def numbers(x):
        yield x + 1

    compiled = bothways.compile(numbers)
    with config.patch(logs="outcomes"):
        for _ in range(4):
            list(compiled(X))
    [message] = caplog.messages
    start = f"outcomes: {numbers.__qualname__}: plain Python from now on"
    assert message.startswith(f"{start}: the function is a generator")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_second_call_adds_nothing_and_other_sizes_add_a_graph(backend):
    def function(x):
        return (x * 2).sin().cos()

    compiled = bothways.compile(function, backend=backend)
    compiled(X), compiled(X)
    [compilation] = bothways.history(compiled)
    assert len(compilation.pieces) == 1
    compiled(X[:, :200])
    assert len(bothways.history(compiled)) == 2 and len(compilation.pieces) == 1
