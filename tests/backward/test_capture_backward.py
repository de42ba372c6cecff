"""``bothways.autograd.capture``: a whole backward is one program. Eager's gradients, hooks and errors are the truth."""

import pytest
import torch
from backward_counting import Captured

import bothways
from bothways import errors
from bothways.record.backwards import backwards
from bothways.testing import RecordGraphs

BACKENDS = ["eager", "aot_eager", "native"]


def plain_reasons():
    return [reason for record in backwards for reason in record.plain]


def model_and_input():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model, torch.randn(3, 4)


def gradients_of(step, times=3):
    """What a training step leaves in ``.grad``, step after step, with and without zeroing."""
    model, x = model_and_input()
    found = []
    for _ in range(times):
        step(model, x)
        found += [p.grad.clone() for p in model.parameters()]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_is_one_graph_with_the_accumulation_in_it(backend):
    compiler = Captured(backend)
    expected = gradients_of(lambda model, x: model(x).sum().backward())
    with bothways.autograd.capture(compiler):
        found = gradients_of(lambda model, x: model(x).sum().backward())
    assert all(map(torch.equal, expected, found))
    assert len(compiler.modules) == 2  # without gradients to add to, and with
    assert plain_reasons() == []


def test_the_backend_sees_one_graph():
    recorded = RecordGraphs()
    model, x = model_and_input()
    with bothways.autograd.capture(Captured(recorded)):
        model(x).sum().backward()
    assert len(recorded.graphs) == 1
    names = [getattr(node.target, "__name__", "") for node in recorded.graphs[0].graph.nodes]
    assert [name for name in names if name.endswith("Backward0")] == [
        "SumBackward0", "AddmmBackward0", "TBackward0", "ReluBackward0", "AddmmBackward0", "TBackward0",
    ]  # fmt: skip


def test_the_module_itself_can_be_run():
    expected = gradients_of(lambda model, x: model(x).sum().backward())
    with bothways.autograd.capture(lambda module: module):
        assert all(map(torch.equal, expected, gradients_of(lambda model, x: model(x).sum().backward())))


def test_it_decorates_a_function():
    compiler = Captured()

    @bothways.autograd.capture(compiler)
    def step(model, x):
        model(x).sum().backward()

    expected = gradients_of(lambda model, x: model(x).sum().backward())
    assert all(map(torch.equal, expected, gradients_of(step)))
    assert len(compiler.modules) == 2


def test_outside_of_it_nothing_is_captured():
    compiler = Captured()
    before = torch.autograd.Variable._execution_engine
    with bothways.autograd.capture(compiler):
        pass
    gradients_of(lambda model, x: model(x).sum().backward())
    assert compiler.modules == []
    assert torch.autograd.Variable._execution_engine is before


def test_the_configuration_captures_everywhere():
    expected = gradients_of(lambda model, x: model(x).sum().backward())
    with bothways.config.patch(capture_backward=True):
        found = gradients_of(lambda model, x: model(x).sum().backward())
    assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))
    assert sum(len(record.modules) for record in backwards) == 2


def test_autograd_grad_gives_its_gradients():
    def run():
        torch.manual_seed(0)
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        z = (x * y).sin()
        return [*torch.autograd.grad(z.sum(), [x, y]), x.grad, y.grad]

    expected, compiler = run(), Captured()
    with bothways.autograd.capture(compiler):
        for _ in range(2):
            found = run()
            assert torch.equal(expected[0], found[0]) and torch.equal(expected[1], found[1])
            assert found[2:] == [None, None]
    assert len(compiler.modules) == 1


def test_inputs_says_who_gets_a_gradient():
    def run():
        torch.manual_seed(0)
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        middle = x * y
        (middle * 2).sum().backward(inputs=[x, middle])
        return x.grad, y.grad, middle.grad

    expected, compiler = run(), Captured()
    with bothways.autograd.capture(compiler):
        for _ in range(2):
            found = run()
            assert torch.equal(expected[0], found[0]) and found[1] is None and torch.equal(expected[2], found[2])


def test_several_roots_with_their_gradients():
    def run():
        torch.manual_seed(0)
        x = torch.randn(3, requires_grad=True)
        torch.autograd.backward([x.sin(), x.cos()], [torch.ones(3), torch.full((3,), 2.0)])
        return x.grad

    expected = run()
    with bothways.autograd.capture(Captured()):
        assert torch.equal(expected, run())
        assert torch.equal(expected, run())


def test_the_gradient_given_is_not_shared():
    x, given = torch.randn(3, requires_grad=True), torch.ones(3)
    with bothways.autograd.capture(Captured()):
        x.view(3).backward(given)
    given.mul_(5)
    assert torch.equal(x.grad, torch.ones(3))


def test_two_leaves_do_not_share_a_gradient():
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    with bothways.autograd.capture(Captured()):
        (x + y).sum().backward()
    x.grad.mul_(5)
    assert torch.equal(y.grad, torch.ones(3))


def test_a_gradient_lies_as_its_leaf_does():
    def run():
        x = torch.randn(4, 3).t().requires_grad_()
        (x * torch.ones(3, 4)).sum().backward()
        return x.grad

    expected = run()
    with bothways.autograd.capture(Captured()):
        assert run().stride() == expected.stride()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_is_no_view(backend):
    x, y = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    with bothways.autograd.capture(Captured(backend)):
        for step in (1, 2, 3):
            (x * 2 + y).sum().backward()
            assert not x.grad._is_view() and not y.grad._is_view()
            assert torch.equal(x.grad, torch.full((3, 3), 2.0 * step))


def test_what_is_used_up_is_eagers_error_for_any_size():
    x, y = torch.randn(3, requires_grad=True), torch.zeros(3)
    y[[1, 2]] = x[[1, 1]]
    with bothways.autograd.capture(lambda module: module, dynamic=True):
        y.backward(torch.ones(3))
        with pytest.raises(RuntimeError, match="second time"):
            y.backward(torch.ones(3))


def test_sizes_that_change_become_inputs():
    compiler = Captured()

    def run(count):
        torch.manual_seed(count)
        x, w = torch.randn(count, 4), torch.randn(4, 2, requires_grad=True)
        (x @ w).relu().sum().backward()
        return w.grad

    expected = {count: run(count) for count in (3, 5, 6, 7)}
    with bothways.autograd.capture(compiler):
        for count, grad in expected.items():
            assert torch.allclose(grad, run(count))
    assert len(compiler.modules) == 2  # for 3, and for all others
    assert "sizes[" in compiler.modules[1].code


def test_all_sizes_can_be_inputs_at_once():
    compiler = Captured(dynamic=True)

    def run(count):
        w = torch.ones(count, requires_grad=True)
        (w * 3).sum().backward()
        return w.grad

    with bothways.autograd.capture(compiler, dynamic=True):
        assert torch.equal(run(3), torch.full((3,), 3.0))
        assert torch.equal(run(5), torch.full((5,), 3.0))
    assert len(compiler.modules) == 1


SINE_FIRST, SINE_AGAIN = (torch.sin, torch.cos, 1), (torch.sin, torch.cos, 2)
COSINE_SECOND = (torch.cos, lambda x: -x.sin(), 2)


def test_another_structure_is_another_program():
    compiler = Captured()
    x = torch.randn(3, requires_grad=True)
    with bothways.autograd.capture(compiler):
        for function, derivative, count in [SINE_FIRST, COSINE_SECOND, SINE_AGAIN]:
            x.grad = None
            function(x).sum().backward()
            assert len(compiler.modules) == count
            assert torch.allclose(x.grad, derivative(x.detach()))


def test_a_recompilation_can_be_an_error():
    x = torch.randn(3, requires_grad=True)
    with bothways.autograd.capture(Captured()), bothways.config.patch(error_on_recompile=True):
        for function in (torch.sin, torch.sin, torch.cos):
            x.grad = None
            y = function(x).sum()
            if function is torch.cos:
                with pytest.raises(errors.RecompileError, match="captured again"):
                    backward_of(y)
            else:
                backward_of(y)
    backward_of(y)  # the error has used nothing up
    assert torch.allclose(x.grad, -x.detach().sin())


def backward_of(y):
    y.backward()


def test_one_compiler_written_anew_compiles_once():
    compiled = []

    def compile_with(log):
        return lambda module: (log.append(module), module)[1]

    x = torch.randn(3, requires_grad=True)
    for _ in range(3):
        x.grad = None
        with bothways.autograd.capture(compile_with(compiled)):
            x.sin().sum().backward()
    assert len(compiled) == 1


def test_inner_captures_have_their_own_compiler():
    outer, inner = Captured(), Captured()
    x = torch.randn(3, requires_grad=True)
    with bothways.autograd.capture(outer):
        with bothways.autograd.capture(inner):
            x.sin().sum().backward()
        x.grad = None
        x.sin().sum().backward()
        with bothways.autograd.capture(None):
            x.cos().sum().backward()
    assert (len(outer.modules), len(inner.modules)) == (1, 1)


def test_what_a_compiler_returns_is_called():
    x = torch.randn(3, requires_grad=True)
    must = "captured backward must return a callable, not str"
    with bothways.autograd.capture(lambda module: "no function"), pytest.raises(errors.BackendFailed, match=must):
        x.sin().sum().backward()
    with pytest.raises(errors.InvalidOption):
        bothways.autograd.capture("eager")


def test_a_graph_that_is_retained_can_be_gone_through_again():
    def run():
        torch.manual_seed(0)
        x = torch.randn(3, requires_grad=True)
        y = x.sin().sum()
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
        return x.grad

    expected = run()
    with bothways.autograd.capture(Captured()):
        assert torch.equal(expected, run())


@pytest.mark.parametrize("create_graph", [True, False])
def test_what_is_differentiated_again_is_as_in_eager(create_graph):
    def run():
        torch.manual_seed(0)
        x = torch.randn(3, requires_grad=True)
        (grad,) = torch.autograd.grad(x.sin().sum(), x, create_graph=create_graph)
        if create_graph:
            (grad * grad).sum().backward()
        return grad, x.grad

    expected = run()
    with bothways.autograd.capture(Captured()):
        found = run()
    assert torch.equal(expected[0], found[0]) and found[0].requires_grad == create_graph
    assert expected[1] is found[1] is None or torch.allclose(expected[1], found[1])


def test_anomaly_mode_is_eagers():
    def run():
        x = torch.zeros(3, requires_grad=True)
        with torch.autograd.detect_anomaly(check_nan=True):
            (x / x).sum().backward()

    with pytest.warns(UserWarning), pytest.raises(RuntimeError) as eager:
        run()
    with pytest.warns(UserWarning), pytest.raises(RuntimeError) as captured, bothways.autograd.capture(Captured()):
        run()
    assert str(eager.value) == str(captured.value)
    assert "anomaly mode" in plain_reasons()[0]


def test_changes_through_views():
    def run():
        torch.manual_seed(0)
        x, y = torch.randn(4, requires_grad=True), torch.randn(2, requires_grad=True)
        z = x * 2
        z[1:3].mul_(y)
        z[0] = 5
        z.exp().sum().backward()
        return x.grad, y.grad

    expected, compiler = run(), Captured()
    with bothways.autograd.capture(compiler):
        for _ in range(2):
            assert all(map(torch.allclose, expected, run()))
    assert len(compiler.modules) == 1 and plain_reasons() == []


def test_gradients_are_cast_and_summed_as_the_engine_does():
    def run():
        torch.manual_seed(0)
        x, y = torch.randn(3, 1, requires_grad=True), torch.randn(4, dtype=torch.float64, requires_grad=True)
        (x * y).sum().backward()
        return x.grad, y.grad

    expected = run()
    with bothways.autograd.capture(Captured()):
        found = run()
    assert all(map(torch.allclose, expected, found))
    assert [grad.dtype for grad in found] == [torch.float32, torch.float64]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("backward_backend", [None, *BACKENDS])
def test_nodes_of_compiled_functions_are_copied_in(backend, backward_backend):
    model, x = model_and_input()
    x.requires_grad_()

    def loss(x):
        return torch.sigmoid(model(x)).sum() + (x * x).sum()

    def step(function):
        model.zero_grad()
        x.grad = None
        (function(x) * 2).backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    expected = [grad.clone() for grad in step(loss)]
    recorded = RecordGraphs()
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(loss, backend=backend)
        for wanted in (recorded, backward_backend):
            with bothways.autograd.capture(Captured(wanted) if wanted else lambda module: module):
                for _ in range(2):
                    assert all(map(torch.allclose, expected, step(compiled)))
    (graph,) = recorded.graphs
    targets = [str(node.target) for node in graph.graph.nodes]
    assert any("aten.mm" in target for target in targets) and not any("compiled_node" in target for target in targets)
    assert plain_reasons() == []


def test_compilers_of_one_code_are_told_apart_by_what_they_close_over():
    used = []

    def compiler_with(name):
        return lambda module: (used.append(name), bothways.compile(module, backend="eager"))[1]

    for name in ("first", "second", "first"):
        x = torch.ones(3, requires_grad=True)
        with bothways.autograd.capture(compiler_with(name)):
            (x * 2).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert used == ["first", "second"]
