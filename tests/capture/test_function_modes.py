"""Function modes: active at the call of a compiled function, and entered inside one."""

import pytest
import torch
import torch.utils.checkpoint
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, _get_current_function_mode_stack

import bothways

BACKENDS = ("eager", "aot_eager", "native")


class Noting(TorchFunctionMode):
    """Notes what it sees, and turns additions into products."""

    def __init__(self):
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, types))
        if func is torch.add:
            func = torch.mul
        return func(*args, **(kwargs or {}))


def many_kinds(x, y):
    z = torch.add(x, y) + x.shape[0]
    z = torch.nn.functional.relu(z) - 1
    z = 2 - z
    z[0] = z[1] ** 2
    for row in z:
        y = y + row
    return (z @ z).sum() + len(x) + y.sum(dim=0), -z, z == 1, x.requires_grad


def results_of(function, *args):
    """What a call gives and what a mode around it saw."""
    with Noting() as mode:
        result = function(*args)
    return result, mode.seen


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mode_at_the_call_sees_what_it_sees_in_eager(backend):
    compiled = bothways.compile(many_kinds, backend=backend, fullgraph=True)
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    for _ in range(2):
        expected, seen = results_of(many_kinds, x, y)
        actual, seen_compiled = results_of(compiled, x, y)
        torch.testing.assert_close(actual, expected)
        assert seen_compiled == seen
    assert len(bothways.explain(compiled).programs) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_are_not_told_of_the_backward(backend):
    def function(x):
        return (x.sin() * x).sum()

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    x = torch.randn(4, requires_grad=True)
    for run in (function, compiled, compiled):
        with Noting() as mode:
            (grad,) = torch.autograd.grad(run(x), x)
        torch.testing.assert_close(grad, (x.cos() * x + x.sin()).detach())
        assert [func for func, _ in mode.seen if func is not torch.autograd.grad] == [
            torch.Tensor.sin, torch.Tensor.mul, torch.Tensor.sum
        ]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_and_without_a_mode_are_two_programs(backend):
    def function(x):
        return torch.add(x, 3)

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    x = torch.ones(2)
    for _ in range(2):
        assert compiled(x).tolist() == [4, 4]
        with Noting():
            assert compiled(x).tolist() == [3, 3]
        with BaseTorchFunctionMode(), Noting():
            assert compiled(x).tolist() == [3, 3]
        with Noting(), BaseTorchFunctionMode():
            assert compiled(x).tolist() == [3, 3]
    assert len(bothways.explain(compiled).programs) == 4


def test_guards_do_not_wake_a_mode():
    def function(x):
        return x * 2

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for size in (2, 3, 2, 4):  # hits, misses and captures
        with Noting() as mode:
            compiled(torch.ones(size))
        assert [func for func, _ in mode.seen] == [torch.ones, torch.Tensor.mul]


def test_what_a_mode_reads_of_itself_is_guarded():
    class Scaling(TorchFunctionMode):
        def __init__(self, factor):
            self.factor = factor

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * self.factor if func is torch.sin else result

    compiled = bothways.compile(lambda x: torch.sin(x), backend="eager", fullgraph=True)
    x = torch.ones(2)
    for factor in (2.0, 3.0, 2.0, 5.0):
        with Scaling(factor):
            torch.testing.assert_close(compiled(x), torch.ones(2).sin() * factor)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_nest_and_each_sees_what_the_inner_ones_call(backend):
    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return torch.add(result, result) if func is torch.sin else result

    def function(x):
        return torch.sin(x)

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    x = torch.full((2,), 0.5)
    for run in (function, compiled, compiled):
        with Noting() as outer, Doubling():
            result = run(x)
        torch.testing.assert_close(result, x.sin() * x.sin())
        assert [func for func, _ in outer.seen] == [torch.sin, torch.add]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mode_is_entered_inside(backend):
    def function(x):
        before = torch.add(x, 3)
        with Noting() as mode:
            inside = torch.add(x, 3)
        return before, inside, torch.add(x, 3), len(mode.seen)

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    x = torch.ones(2)
    expected = function(x)
    for _ in range(2):
        actual = compiled(x)
        torch.testing.assert_close(actual, expected)
    assert _get_current_function_mode_stack() == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_break_leaves_the_stack_as_eager_has_it(backend):
    stacks = []

    def function(x):
        with Noting() as outer:
            with BaseTorchFunctionMode():
                y = torch.add(x, 3)
                stacks.append([type(mode) for mode in _get_current_function_mode_stack()])
                bothways.graph_break()
                y = torch.add(y, 3)
            bothways.graph_break()
            y = torch.add(y, 3)
        return y, len(outer.seen)

    x = torch.ones(2)
    expected = function(x)
    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), expected)
    assert stacks == [[Noting, BaseTorchFunctionMode]] * 3
    assert _get_current_function_mode_stack() == []


def test_an_operation_that_a_mode_breaks_is_done_by_python():
    class Reading(TorchFunctionMode):
        def __init__(self):
            self.sums = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.sin:
                self.sums.append(result.sum().item())
            return result

    def function(x):
        y = torch.sin(x + 1)
        return torch.sin(y) * 2

    compiled = bothways.compile(function, backend="eager")
    x = torch.ones(2)
    for run in (function, compiled, compiled):
        with Reading() as mode:
            result = run(x)
        torch.testing.assert_close(result, torch.sin(torch.sin(x + 1)) * 2)
        assert len(mode.sums) == 2 and _get_current_function_mode_stack() == []


def test_an_exception_inside_leaves_no_mode_behind():
    def function(x):
        with Noting():
            if x.shape[0] == 2:
                raise ValueError("two")
            return x + 1

    compiled = bothways.compile(function, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="two"):
            compiled(torch.ones(2))
        assert _get_current_function_mode_stack() == []
        assert compiled(torch.ones(3)).tolist() == [2, 2, 2]


def test_a_mode_that_raises_raises():
    class Refusing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.sin:
                raise RuntimeError("no sine")
            return func(*args, **(kwargs or {}))

    def function(x):
        try:
            return torch.sin(x)
        except RuntimeError:
            return torch.cos(x)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for _ in range(2):
        with Refusing():
            torch.testing.assert_close(compiled(x), x.cos())
        torch.testing.assert_close(compiled(x), x.sin())


def test_modes_are_pushed_and_popped_by_hand():
    def pops(x):
        mode = torch._C._pop_torch_function_stack()
        return torch.add(x, 3), mode, torch._C._len_torch_function_stack()

    def pushes(x, mode):
        torch._C._push_on_torch_function_stack(mode)
        return torch.add(x, 3)

    mode, x = Noting(), torch.ones(2)
    popping = bothways.compile(pops, backend="eager", fullgraph=True)
    pushing = bothways.compile(pushes, backend="eager", fullgraph=True)
    for _ in range(2):
        assert pushing(x, mode).tolist() == [3, 3]
        assert _get_current_function_mode_stack() == [mode]
        result, popped, depth = popping(x)
        assert result.tolist() == [4, 4] and popped is mode and depth == 0
        assert _get_current_function_mode_stack() == []


@pytest.mark.parametrize("switch", [torch._C.DisableTorchFunction, torch._C.DisableTorchFunctionSubclass])
def test_switches_are_heeded_outside_and_inside(switch):
    class Three(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.add:
                return torch.full((2,), 3.0)
            return super().__torch_function__(func, types, args, kwargs)

    def function(x):
        return torch.add(x, 5)

    def switching(x):
        with switch():
            return torch.add(x, 5)

    x = torch.full((2,), 2.0).as_subclass(Three)
    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    inside = bothways.compile(switching, backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(x).tolist() == [3, 3]
        for mode in (BaseTorchFunctionMode, Noting):
            with mode():
                assert compiled(x).tolist() == function(x).tolist()
                assert inside(x).tolist() == switching(x).tolist()
                with switch():
                    assert compiled(x).tolist() == function(x).tolist()
        with switch():
            assert compiled(x).tolist() == [7, 7]


def test_a_mode_and_a_default_device():
    def function():
        return torch.zeros(2), torch.add(torch.ones(1, device="cpu"), 3)

    def inside():
        with torch.device("meta"):
            return function()

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    entering = bothways.compile(inside, backend="eager", fullgraph=True)
    for _ in range(2):
        for run in (function, compiled):
            with torch.device("meta"), Noting() as mode:
                zeros, added = run()
            assert zeros.device.type == "meta" and added.tolist() == [3] and len(mode.seen) == 3
        for run in (inside, entering):
            with Noting() as mode:
                zeros, added = run()
            assert zeros.device.type == "meta" and added.tolist() == [3] and len(mode.seen) == 5


def test_modes_in_modules_and_loops():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4))
    compiled = bothways.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 4)
    for run in (model, compiled, compiled):
        with Noting() as mode:
            result = run(x)
        torch.testing.assert_close(result, model(x))
        functional = torch.nn.functional
        assert [func for func, _ in mode.seen] == [functional.linear, functional.relu, functional.layer_norm]


def test_grad_modes_are_functions_that_modes_see():
    def function(x):
        with torch.no_grad():
            return x * 2

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    expected, seen = results_of(function, x)
    for _ in range(2):
        actual, seen_compiled = results_of(compiled, x)
        assert seen_compiled == seen and not actual.requires_grad


def test_the_length_that_a_list_asks_for_is_seen():
    def function(x):
        return list(x + 1), tuple(x)

    compiled = bothways.compile(function, backend="eager")
    x = torch.ones(2)
    expected, seen = results_of(function, x)
    for _ in range(2):
        actual, seen_compiled = results_of(compiled, x)
        assert seen_compiled == seen
        torch.testing.assert_close(actual, expected)


def test_custom_functions_and_checkpoints_are_done_by_python():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.add(x, 2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

    def function(x):
        y = Double.apply(x * 3)
        return torch.utils.checkpoint.checkpoint(lambda v: torch.add(v, 2), y, use_reentrant=False) + 1

    compiled = bothways.compile(function, backend="aot_eager")
    results = []
    for run in (function, compiled, compiled):
        x = torch.ones(2, requires_grad=True)
        value, seen = results_of(run, x)
        value.sum().backward()
        results.append((value.detach(), x.grad, len(seen)))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])
