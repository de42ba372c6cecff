"""``testing.check`` compares plain and compiled in all that can be seen; ``bisect`` finds what is at fault."""

import pytest
import torch
import torch.nn.functional as F

import bothways
from bothways.lower.dialects.c_family import operators as in_c
from bothways.ops import LOWERINGS
from bothways.testing import bisect, check

BACKENDS = ["eager", "aot_eager", "native"]
counted = []
scale = 3.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_that_agrees(backend):
    given = [torch.randn(3, 4), torch.randn(4, requires_grad=True)]
    found = check(lambda x, w: (x * w).sin().sum(-1), given, backend=backend)
    assert found and found.difference is None
    assert "2 compiled calls agree" in str(found) and str(found).endswith("returned 1 tensor")


@pytest.mark.parametrize("returned, words", [(0.5, "no tensor"), ([torch.ones(1), torch.ones(2)], "2 tensors")])
def test_what_plain_python_returned_is_told(returned, words):
    assert str(check(lambda x: returned, [torch.ones(2)], backend="eager")).endswith(f"returned {words}")


def test_a_whole_step_is_compared_and_everything_is_put_back():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []

    def step(x):
        global scale
        optimizer.zero_grad()
        loss = model(x).pow(2).mean() * scale
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        counted.append(1)
        scale += 1
        return loss.detach()

    before, drawn = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    assert check(step, [torch.randn(6, 4)]), str(check(step, [torch.randn(6, 4)]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not losses and not counted and scale == 3.0 and not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.set_rng_state(drawn)


def test_arguments_that_are_changed_are_compared_and_put_back():
    x, record = torch.zeros(3), {"calls": 0, "seen": []}

    def change(x, record):
        x.add_(1)
        record["calls"] += 1
        record["seen"].append(x.sum())

    assert check(change, [x, record])
    assert torch.equal(x, torch.zeros(3)) and record == {"calls": 0, "seen": []}


def test_exceptions_are_compared():
    def fails(x):
        return x.view(7)

    found = check(fails, [torch.ones(3)])
    assert found and "raised RuntimeError" in str(found)


def test_a_compiled_function_is_compared_with_its_original():
    @bothways.compile(backend="eager")
    def double(x):
        return x * 2

    assert check(double, [torch.ones(2)])
    assert check(bothways.compile(torch.nn.Linear(2, 2)), [torch.ones(2)])


def wrong_by_one_percent(graph, inputs):
    def run(*given):
        return tuple(value * 1.01 if isinstance(value, torch.Tensor) else value for value in graph(*given))

    return run


def loses_gradients(graph, inputs):
    def run(*given):
        return tuple((value.detach() + 0 * value) for value in graph(*given))

    return run


def forgets_changes(graph, inputs):
    return lambda *given: graph(*[value.clone() for value in given])


@pytest.mark.parametrize(
    "backend, function, where",
    [
        (wrong_by_one_percent, lambda x: x.sin() * 2, "['returned']['value']"),
        (loses_gradients, lambda x: x.sin() * 2, "['afterwards']['argument 0']['grad']"),
        (forgets_changes, lambda x: x.detach().add_(1).sum(), "['afterwards']['argument 0']['value']"),
    ],
    ids=["values", "gradients", "changes"],
)
def test_what_differs_is_named(backend, function, where):
    found = check(function, [torch.ones(3, requires_grad=True)], backend=backend)
    assert not found and where in found.difference and found.call == 1


def raises(graph, inputs):
    def run(*given):
        raise ValueError("no")

    return run


def test_an_exception_that_plain_python_does_not_raise_differs():
    found = check(lambda x: x + 1, [torch.ones(3)], backend=raises)
    assert not found and "['raised']" in found.difference and "ValueError" in found.difference


def test_a_second_call_that_differs_is_found():
    calls = []

    def backend(graph, inputs):
        def run(*given):
            calls.append(1)
            return tuple(value + len(calls) - 1 for value in graph(*given))

        return run

    assert check(lambda x: x * 2, [torch.ones(3)], backend=backend).call == 2


def test_shared_objects_and_cycles_are_seen_once():
    shared = [torch.ones(2)]
    shared.append(shared)

    def use(values, same):
        values[0].add_(same[0])
        return values[1] is same

    assert check(use, [shared, shared])


# Which part is at fault ------------------------------------------------------------------------------------


def program(x, weight):
    hidden = (x * weight).sin()
    bothways.graph_break()
    hidden = torch.tanh(hidden) + 1
    return (hidden.softmax(-1) * weight).sum()


def inputs():
    torch.manual_seed(0)
    return [torch.randn(6, 8), torch.randn(6, 8, requires_grad=True)]


@pytest.fixture
def uncached():
    """What is wrong here must not be found by other tests."""
    with bothways.config.patch(kernel_cache=False):
        yield


def test_nothing_is_at_fault_where_nothing_differs():
    found = bisect(program, inputs())
    assert found.stage == "nothing" and "nothing differs" in str(found)


def test_a_wrong_kernel_is_found(monkeypatch, uncached):
    """The first graph is right; in the second, what the C of one kernel says is not what its loops say."""
    monkeypatch.setitem(in_c.TEMPLATES, "exp", "(exp{F}({0}) * (T)1.01 + (T)0.01)")
    found = bisect(program, inputs())
    assert (found.stage, found.half) == ("kernels", "forward")
    assert found.function.startswith("program, from line")
    assert "1.01" in found.kernel and "values differ" in found.difference
    assert any("softmax" in line for line in found.lines)
    assert "at fault: kernels" in str(found)


def test_a_wrong_kernel_of_the_backward_is_found(monkeypatch, uncached):
    monkeypatch.setitem(in_c.OF_FLOATING, "cos", "(cos{F}({0}) * (T)1.01)")
    monkeypatch.setitem(in_c.TEMPLATES, "cos", "(cos{F}({0}) * (T)1.01)")
    found = bisect(program, inputs())
    assert (found.stage, found.half) == ("kernels", "backward")
    assert found.function == "program" and "1.01" in found.kernel


@pytest.mark.slow
def test_a_wrong_lowering_is_found(monkeypatch, uncached):
    """Kernels do what their loops say, and the loops are wrong."""
    right = LOWERINGS[torch.ops.aten.tanh.default]
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.tanh.default, lambda b, out, x: right(b, out, right(b, out, x)))
    found = bisect(program, inputs())
    assert (found.stage, found.half, found.operation) == ("kernels", "forward", "aten.tanh.default")
    assert not found.kernel and "tanh" in found.graph
    assert LOWERINGS[torch.ops.aten.tanh.default] is not right


def test_a_wrong_graph_of_a_backend_is_found():
    def backend(graph, inputs):
        return wrong_by_one_percent(graph, inputs) if "tanh" in str(graph.graph) else graph.forward

    found = bisect(program, inputs(), backend=backend)
    assert found.stage == "backend" and "tanh" in found.graph and "sin" not in found.graph


@pytest.mark.slow
def test_kernels_of_several_steps_with_sizes_that_change(monkeypatch, uncached):
    monkeypatch.setitem(in_c.TEMPLATES, "exp", "(exp{F}({0}) + (T)0.5)")

    def sums(x):
        return F.layer_norm(x, x.shape[-1:]).softmax(-1) + x.mean()

    found = bisect(sums, [torch.randn(5, 7)], dynamic=True)
    assert found.stage == "kernels" and "0.5" in found.kernel
