"""The backend registry: names, callables, registration, entry points, and what a backend must return."""

import functools
import sys
import warnings
import weakref
from importlib import metadata

import pytest
import torch
from torch import fx

import bothways
from bothways.backends import (
    DEFAULT_BACKEND,
    aot,
    backend_name,
    call_backend,
    list_backends,
    lookup_backend,
    register_backend,
    registry,
)
from bothways.backends.eager import eager
from bothways.backends.native import native
from bothways.errors import BackendFailed, InvalidBackend


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_loaded_entry_points", {})


@pytest.fixture
def gm():
    graph = fx.Graph()
    graph.output((graph.call_function(torch.sin, (graph.placeholder("x"),)),))
    return fx.GraphModule(torch.nn.Module(), graph)


def announce(monkeypatch, **backends):
    group = registry.ENTRY_POINT_GROUP
    points = {group: [metadata.EntryPoint(name, value, group) for name, value in backends.items()]}
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: points[group])


def test_eager_gives_back_the_forward_of_the_graph(gm):
    compiled = lookup_backend("eager")(gm, [torch.ones(2)])
    assert compiled == gm.forward and not isinstance(compiled, torch.nn.Module)
    assert torch.equal(compiled(torch.ones(2))[0], torch.ones(2).sin())


def test_the_default_is_the_best_backend_there_is():
    assert DEFAULT_BACKEND == "native"
    assert lookup_backend(DEFAULT_BACKEND) is native


def test_every_listed_name_can_be_looked_up():
    assert {"eager", "native"} <= set(list_backends())
    assert list_backends() == sorted(list_backends())
    for name in ("eager", "native"):
        assert callable(lookup_backend(name))


def test_a_callable_is_a_backend_already():
    def mine(gm, example_inputs):
        return gm.forward

    assert lookup_backend(mine) is mine


@pytest.mark.parametrize("wrong", ["eagre", "", 3, None])
def test_a_wrong_backend_names_the_valid_ones(wrong):
    with pytest.raises(InvalidBackend, match="eager, .*native") as caught:
        lookup_backend(wrong)
    assert caught.value.name == wrong and "eager" in caught.value.valid


@pytest.mark.parametrize("wrong, meant", [("eagr", "eager"), ("inductor", "native"), ("natve", "native")])
def test_a_wrong_backend_names_the_one_that_may_be_meant(wrong, meant):
    with pytest.raises(InvalidBackend, match=f"no backend '{wrong}' .did you mean '{meant}'"):
        lookup_backend(wrong)


def test_every_form_of_registration():
    def one(gm, inputs):
        return gm.forward

    @register_backend
    def two(gm, inputs):
        return gm.forward

    @register_backend()
    def three(gm, inputs):
        return gm.forward

    @register_backend(name="4")
    def four(gm, inputs):
        return gm.forward

    assert register_backend(one) is one
    register_backend(one, name="uno")
    expected = {"one": one, "two": two, "three": three, "4": four, "uno": one}
    assert {name: lookup_backend(name) for name in expected} == expected
    assert set(expected) <= set(list_backends())


def test_registering_again_replaces_but_not_the_built_in_ones():
    first, second = (lambda gm, inputs: gm.forward), (lambda gm, inputs: gm.forward)
    register_backend(first, name="mine")
    register_backend(second, name="mine")
    assert lookup_backend("mine") is second
    for name in ("eager", "native"):
        with pytest.raises(ValueError, match="is a backend of bothways"):
            register_backend(first, name=name)


def test_what_cannot_be_registered():
    with pytest.raises(TypeError, match="a backend is a callable"):
        register_backend("eager")
    with pytest.raises(TypeError, match="has no __name__"):
        register_backend(type("Anonymous", (), {"__call__": lambda self, gm, inputs: gm})())


def test_entry_points_are_found_and_loaded_when_asked_for(monkeypatch):
    announce(monkeypatch, third_party="bothways.backends.eager:eager", broken="no_such_distribution:backend")
    assert {"third_party", "broken", "eager"} <= set(list_backends())
    assert lookup_backend("third_party") is eager
    with pytest.raises(BackendFailed, match=r"'broken' \(no_such_distribution:backend\) could not be"):
        lookup_backend("broken")


def test_an_entry_point_must_be_callable(monkeypatch):
    announce(monkeypatch, text="bothways.backends.registry:DEFAULT_BACKEND")
    with pytest.raises(BackendFailed, match="is str, not a callable"):
        lookup_backend("text")


def test_own_registration_goes_before_an_entry_point(monkeypatch):
    announce(monkeypatch, twice="bothways.backends.eager:eager")
    mine = register_backend(lambda gm, inputs: gm.forward, name="twice")
    assert lookup_backend("twice") is mine


def test_call_backend_passes_a_list_and_checks_the_result(gm):
    def careful(gm, example_inputs):
        assert type(example_inputs) is list
        return gm.forward

    def broken(gm, example_inputs):
        raise ZeroDivisionError("oh")

    def forgetful(gm, example_inputs):
        gm.recompile()

    assert call_backend(careful, gm, (torch.ones(1),)) == gm.forward
    with pytest.raises(BackendFailed, match="'broken' raised ZeroDivisionError: oh") as caught:
        call_backend(broken, gm, [])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(BackendFailed, match="'forgetful' must return a callable, not NoneType"):
        call_backend(forgetful, gm, [])


def test_what_a_backend_compiled_returns_a_tuple_as_the_graph_does():
    def bare(gm, example_inputs):
        return lambda *inputs: gm(*inputs)[0]

    def list_of_one(gm, example_inputs):
        return lambda *inputs: list(gm(*inputs))

    def one_too_many(gm, example_inputs):
        return lambda *inputs: (*gm(*inputs), None)

    def program(x):
        return x.sin() + 1

    x = torch.ones(1, 3)  # the only row of which would have been taken for the result
    assert torch.equal(bothways.compile(program, backend=list_of_one)(x), program(x))
    for backend, got in ((bare, "a Tensor"), (one_too_many, "2 values")):
        compiled = bothways.compile(program, backend=backend)
        for _ in range(2):
            with pytest.raises(BackendFailed, match=f"'{backend.__name__}' compiled must return a tuple of 1.*{got}"):
                compiled(x)


def test_a_bare_tensor_is_refused_where_plain_python_could_do_the_call_instead():
    def bare(gm, example_inputs):
        return lambda *inputs: gm(*inputs)[0]

    def program(x, index):
        return x[index] + 1  # may fail on data, so that the call goes back to Python

    compiled = bothways.compile(program, backend=bare)
    for _ in range(2):
        with pytest.raises(BackendFailed, match="must return a tuple"):
            compiled(torch.ones(1, 3), torch.tensor([0]))


def test_once_a_result_was_as_it_must_be_calls_go_straight_to_what_was_compiled():
    callers, wrong = [], [True, False, False, False]

    def backend(gm, example_inputs):
        def run(*inputs):
            callers.append(sys._getframe(1).f_code.co_filename)
            return gm(*inputs)[0] if wrong.pop(0) else gm(*inputs)

        return run

    def program(x):
        x.add_(1)
        return x.sin() + 1

    compiled = bothways.compile(program, backend=backend)
    with pytest.raises(BackendFailed, match="must return a tuple"):
        compiled(torch.ones(3))
    for _ in range(3):
        x, y = torch.rand(2, 3).unbind()
        y.copy_(x)
        assert torch.equal(compiled(x), program(y)) and torch.equal(x, y)
    assert [caller == registry.__file__ for caller in callers] == [True, True, False, False]


def test_what_was_compiled_lives_no_longer_than_its_program(gm):
    class Run:
        def __call__(self, *inputs):
            return gm(*inputs)

    for calls in range(3):
        run = Run()
        compiled = call_backend(lambda gm, inputs, run=run: run, gm, [])
        for _ in range(calls):
            assert torch.equal(compiled(torch.ones(2))[0], torch.ones(2).sin())
        known = weakref.ref(run)
        del run, compiled
        assert known() is None


def test_a_users_backend_is_heard_when_it_warns():
    def talkative(gm, example_inputs):
        warnings.warn("compiling", stacklevel=1)
        said.append(torch.is_warn_always_enabled())
        return gm.forward

    said = []
    register_backend(talkative)
    for backend in (talkative, "talkative"):
        with pytest.warns(UserWarning, match="compiling"):
            bothways.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(3))
    assert said == [False, False]


def test_aot_takes_functions():
    for wrong in ({"fw_compiler": 3}, {"fw_compiler": None}, {"fw_compiler": eager, "bw_compiler": "eager"}):
        with pytest.raises(TypeError, match="_compiler=.*: a function of a graph and its inputs is expected"):
            aot(**wrong)


@pytest.mark.parametrize("dynamic", [None, True], ids=["", "dynamic"])
def test_aot_takes_operations_apart(dynamic):
    def logistic(x):
        return 1 / (1 + torch.exp(-x))

    def logistic_backward(grad, y):
        return grad * (1 - y) * y

    seen = []

    def compiler(graph, inputs):
        seen.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    table = {torch.ops.aten.sigmoid.default: logistic, torch.ops.aten.sigmoid_backward.default: logistic_backward}
    function = lambda x: torch.sigmoid(x * 2).sum()
    compiled = bothways.compile(function, backend=aot(fw_compiler=compiler, decompositions=table), dynamic=dynamic)
    for size in (3, 3, 4, 5):
        x, y = (torch.linspace(-1, 1, size).requires_grad_() for _ in range(2))
        expected, found = function(x), compiled(y)
        torch.testing.assert_close(found, expected)
        # Twice, as the graph of the first gradients is taken apart as well.
        for result, leaf in ((expected, x), (found, y)):
            (first,) = torch.autograd.grad(result, leaf, create_graph=True)
            first.sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert seen and not any("sigmoid" in name for names in seen for name in names)
    assert "aten.exp.default" in seen[0]


def test_decompositions_are_a_table():
    with pytest.raises(TypeError, match="decompositions=.*: a mapping of operations to functions is expected"):
        aot(fw_compiler=eager, decompositions=[torch.ops.aten.sigmoid.default])


def test_backend_name():
    class Counter:
        def __call__(self, gm, example_inputs):
            return gm.forward

    assert [backend_name(b) for b in ("native", eager, Counter())] == ["native", "eager", "Counter"]


def test_a_backend_that_wraps_what_ours_has_compiled_is_called_with_tensors_alone():
    """``functools.wraps`` takes over the attributes of ours, and so what is known of it."""
    calls = []

    def backend(graph, inputs):
        compiled = bothways.backends.lookup_backend("native")(graph, inputs)

        @functools.wraps(compiled)
        def run(*tensors):
            calls.append(len(tensors))
            return compiled(*tensors)

        return run

    def program(tensors, x):
        for tensor in tensors:
            tensor.mul_(0.5).add_(x)
        return tensors[0].sum()

    compiled = bothways.compile(program, backend=backend)
    tensors, plain = ([torch.ones(3) for _ in range(40)] for _ in range(2))
    for _ in range(3):
        assert compiled(tensors, torch.ones(3)) == program(plain, torch.ones(3))
    assert calls == [41, 41, 41]
