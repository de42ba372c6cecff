"""Whoever else traces a compiled function sees the plain one: TorchScript, fx, export, modes, torch.compile."""

import functools
import io
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import bothways
from bothways.errors import TracedWarning

BACKENDS = ("eager", "aot_eager", "native")
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x.sum(dim=0)


def function(x):
    return torch.sin(x) * 2 + x.shape[0]


def faked(compiled, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        traced = compiled(mode.from_tensor(x))
    assert type(traced).__name__ == "FakeTensor" and traced.shape == function(x).shape
    return function  # nothing to run


def exported(compiled, x):
    class Holder(nn.Module):
        def forward(self, x):
            return compiled(x)

    module = compiled if isinstance(compiled, nn.Module) else Holder()
    return torch.export.export(module, (x,)).module()


# Who traces -> what it makes of a compiled function.
TRACERS = {
    "torch.jit.trace": lambda compiled, x: torch.jit.trace(compiled, x, check_trace=False),
    "torch.fx": lambda compiled, x: torch.fx.symbolic_trace(compiled),
    "make_fx": lambda compiled, x: make_fx(compiled)(x),
    "make_fx with fakes": lambda compiled, x: make_fx(compiled, tracing_mode="fake")(x),
    "make_fx with symbols": lambda compiled, x: make_fx(compiled, tracing_mode="symbolic")(x),
    "torch.export": exported,
    "torch.vmap": lambda compiled, x: lambda y: torch.vmap(compiled, in_dims=1, out_dims=1)(y),
    "torch.func": lambda compiled, x: lambda y: torch.func.vjp(compiled, y)[0],
    "fakes": faked,
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tracer", TRACERS)
def test_what_is_traced_is_the_plain_function(tracer, backend, in_c):
    other = X * 3
    with bothways.config.patch(guards_in_c=in_c):
        for is_warm in (False, True):
            bothways.reset()
            compiled = bothways.compile(function, backend=backend)
            if is_warm:
                compiled(X)
            programs = [compilation.program for compilation in bothways.history(compiled)]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                traced = TRACERS[tracer](compiled, X)
                torch.testing.assert_close(traced(other), function(other))
            told = [message for message in caught if message.category is TracedWarning]
            assert len(told) == 1 and "the compiled function function was called" in str(told[0].message)
            assert not any("Converting a tensor" in str(message.message) for message in caught)
            *known, last = bothways.history(compiled)
            assert [compilation.program for compilation in known] == programs
            assert [found.code for found in last.breaks] == ["torch_mode"] and not last.was_captured
            for x in (X, X, X + 1):
                assert torch.equal(compiled(x), function(x))
            assert len(bothways.explain(compiled).programs) == 1


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tracer", ["torch.jit.trace", "torch.fx", "torch.export"])
@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.filterwarnings("ignore::bothways.errors.TracedWarning")
def test_modules_are_traced(tracer, backend, is_warm):
    model = Model()
    compiled = bothways.compile(model, backend=backend)
    if is_warm:
        compiled(X)
    traced = TRACERS[tracer](compiled, X)
    torch.testing.assert_close(traced(X * 2), model(X * 2))
    for x in (X, X * 2):
        torch.testing.assert_close(compiled(x), model(x))
    compiled(X).sum().backward()
    assert model.linear.weight.grad is not None


@pytest.mark.filterwarnings("ignore::bothways.errors.TracedWarning")
def test_fullgraph_runs_plainly_where_it_is_traced():
    compiled = bothways.compile(function, fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(torch.jit.trace(compiled, X)(X * 2), function(X * 2))
        torch.testing.assert_close(make_fx(compiled)(X)(X * 2), function(X * 2))
        assert torch.equal(compiled(X), function(X))


@pytest.mark.filterwarnings("ignore::bothways.errors.TracedWarning")
def test_a_trace_that_fails_leaves_nothing_behind():
    def fails_in_a_trace(x):
        if torch.jit.is_tracing():
            raise ValueError("not here")
        return x * 2

    compiled = bothways.compile(fails_in_a_trace, backend="native")
    for _ in range(2):
        with pytest.raises(ValueError, match="not here"):
            torch.jit.trace(compiled, X)
        assert torch.equal(compiled(X), X * 2)
    assert len(bothways.explain(compiled).programs) == 1


@pytest.mark.filterwarnings("ignore::bothways.errors.TracedWarning")
def test_a_function_with_a_break_is_traced():
    def breaking(x):
        y = torch.sin(x)
        bothways.graph_break()
        return y + 1

    compiled = bothways.compile(breaking, backend="native")
    for _ in range(2):
        torch.testing.assert_close(torch.jit.trace(compiled, X)(X * 2), breaking(X * 2))
        assert torch.equal(compiled(X), breaking(X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_new", [False, True])
def test_onnx(is_new):
    pytest.importorskip("onnx")
    if is_new:
        pytest.importorskip("onnxscript")
    model = Model()
    compiled = bothways.compile(model)
    compiled(X)
    torch.onnx.export(compiled, (X,), io.BytesIO(), dynamo=is_new)
    torch.testing.assert_close(compiled(X), model(X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_warm", [False, True])
def test_the_graph_that_writers_of_other_formats_ask_for(is_warm):
    model = Model()
    compiled = bothways.compile(model)
    if is_warm:
        compiled(X)
    graphs = [
        [node.kind() for node in torch.jit._get_trace_graph(one, (X,))[0].nodes()] for one in (model, compiled)
    ]
    assert graphs[0] == graphs[1] and "aten::relu" in graphs[0]
    torch.testing.assert_close(compiled(X), model(X))


@pytest.mark.filterwarnings("ignore")
def test_a_graph_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    model = Model()
    compiled = bothways.compile(model)
    compiled(X)
    with SummaryWriter(tmp_path) as writer:
        writer.add_graph(compiled, X)
    torch.testing.assert_close(compiled(X), model(X))


# torch.compile, on either side.


@pytest.fixture
def torch_compile():
    yield functools.partial(torch.compile, backend="eager")
    torch._dynamo.reset()


@pytest.mark.parametrize("is_warm", [False, True])
def test_torch_compile_of_a_compiled_function(torch_compile, is_warm):
    compiled = bothways.compile(function)
    if is_warm:
        compiled(X)
    again = torch_compile(compiled)
    for x in (X, X * 2, torch.ones(5)):
        assert torch.equal(again(x), function(x))
        assert torch.equal(compiled(x), function(x))


@pytest.mark.parametrize("is_warm", [False, True])
def test_torch_compile_around_calls_of_compiled_functions(torch_compile, is_warm):
    model = Model()
    compiled, module = bothways.compile(function), bothways.compile(model)

    def around(x):
        y = compiled(x) + 1
        print(end="")
        return module(y) * compiled(y)

    def plain(x):
        y = function(x) + 1
        return model(y) * function(y)

    if is_warm:
        compiled(X), module(X)
    again = torch_compile(around)
    for x in (X, X * 2):
        torch.testing.assert_close(again(x), plain(x))


def test_torch_compile_looks_into_compiled_modules(torch_compile):
    model = Model()
    compiled = bothways.compile(model)
    torch.testing.assert_close(torch_compile(compiled)(X), model(X))
    torch.testing.assert_close(torch_compile(lambda x: compiled(x) + 1, fullgraph=True)(X), model(X) + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_torch_compile_made_is_compiled_from_its_original(torch_compile, backend):
    compiled = bothways.compile(torch_compile(function), backend=backend, fullgraph=True)
    for x in (X, X, X * 2):
        assert torch.equal(compiled(x), function(x))
    assert compiled.__bothways__.original is function
    model = Model()
    module = bothways.compile(torch_compile(model), backend=backend, fullgraph=True)
    torch.testing.assert_close(module(X), model(X))
    assert module._orig_mod is model
    method = bothways.compile(torch_compile(model.forward), backend=backend, fullgraph=True)
    torch.testing.assert_close(method(X), model(X))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_of_what_torch_compile_made(torch_compile, backend):
    inner = torch_compile(function)

    def outer(x):
        return inner(x * 2) + 1

    compiled = bothways.compile(outer, backend=backend)
    for x in (X, X, X * 3):
        assert torch.equal(compiled(x), function(x * 2) + 1)


# A function that takes over the name and the attributes of a compiled one is not that one.


def wrapping(compiled):
    @functools.wraps(compiled)
    def wrapper(x):
        return compiled(x) * 2

    return wrapper


def test_functions_that_wrap_compiled_ones_do_what_they_do(torch_compile):
    wrapper = wrapping(bothways.compile(function, backend="eager"))
    expected = function(X) * 2
    assert torch.equal(bothways.compile(wrapper, backend="eager")(X), expected)
    assert torch.equal(bothways.compile(lambda x: wrapper(x) + 1, backend="eager")(X), expected + 1)
    assert torch.equal(bothways.disable(wrapper)(X), expected)
    assert torch.equal(bothways.explain(wrapper)(X).result, expected)
    assert torch.equal(torch_compile(wrapper)(X), expected)
    assert torch.equal(torch_compile(lambda x: wrapper(x) + 1)(X), expected + 1)


def test_a_compiled_method_that_is_disabled_keeps_its_object():
    class Scale:
        n = 3

        @bothways.compile(backend="eager")
        def times(self, x):
            return x * self.n

    assert torch.equal(bothways.disable(Scale().times)(X), X * 3)
