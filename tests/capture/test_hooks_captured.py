"""Hooks of intermediate tensors under ``fullgraph=True``: captured when the backward runs, or the backward raises."""

import functools

import pytest
import torch
from agreeing import agree
from hooking import BACKENDS, numbers

import bothways
from bothways.errors import Unsupported

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def compiled_with(program, backend):
    return bothways.compile(program, backend=backend, fullgraph=True)


def test_a_hook_that_prints_lets_the_forward_pass_and_the_backward_raise(backend, capsys):
    class Talking:
        count = 0

        def hook(self, grad):
            print("Break!")
            self.count += 1
            return grad * 2

    talking = Talking()

    def program(x):
        y = x.mul(2)
        y.register_hook(functools.partial(lambda grad, *, obj: obj.hook(grad), obj=talking))
        return y.mul(3)

    compiled = compiled_with(program, backend)
    for _ in range(2):
        x = numbers(3)
        result = compiled(x)
        with pytest.raises(Unsupported, match=r'print\("Break!"\)'):
            result.sum().backward()
    assert talking.count == 0 and x.grad is None and capsys.readouterr().out == ""


def test_without_fullgraph_it_runs_as_python_at_its_moment(backend, capsys):
    def program(x):
        y = x.mul(2)
        y.register_hook(lambda grad: print("seen") or grad * 2)
        return y.mul(3)

    compiled = bothways.compile(program, backend=backend)
    for _ in range(2):
        x = numbers(3)
        result = compiled(x)
        assert capsys.readouterr().out == ""
        result.sum().backward()
        assert capsys.readouterr().out == "seen\n" and torch.equal(x.grad, torch.full((3,), 12.0))


def test_a_hook_that_is_marked_as_python_stays_python(backend):
    seen = []

    @bothways.disable
    def hook(grad):
        seen.append(str(grad.tolist()))

    def program(x):
        y = x.mul(2)
        y.register_hook(hook)
        return y

    compiled_with(program, backend)(numbers(2)).sum().backward()
    assert seen == ["[1.0, 1.0]"]


def test_an_exception_of_a_hook_is_the_users(backend):
    def program(x):
        y = x.mul(2)
        y.register_hook(fails)
        return y

    def fails(grad):
        raise KeyError("from the hook")

    result = compiled_with(program, backend)(numbers(2))
    with pytest.raises(KeyError, match="from the hook"):
        result.sum().backward()


def test_the_line_and_the_reason_are_told(backend):
    def hook(grad):
        if grad.sum() > 0:
            return grad * 2
        return grad

    def program(x):
        y = x.mul(2)
        y.register_hook(hook)
        return y

    result = compiled_with(program, backend)(numbers(2))
    with pytest.raises(Unsupported) as caught:
        result.sum().backward()
    assert caught.value.break_.code == "tensor_branch" and caught.value.break_.where.text == "if grad.sum() > 0:"


def test_on_inputs_hooks_are_python(backend, capsys):
    def program(x):
        x.register_hook(lambda grad: print("on the input"))
        return x * 2

    compiled_with(program, backend)(numbers(2)).sum().backward()
    assert capsys.readouterr().out == "on the input\n"


def test_state_that_changes_each_time_warns_of_nothing(backend, recwarn):
    state = {"steps": 0}

    def hook(grad):
        state["steps"] += 1
        return grad * state["steps"]

    def program(x):
        y = x.mul(2)
        y.register_hook(hook)
        return y

    compiled = compiled_with(program, backend)
    for step in range(1, 15):
        x = numbers(2)
        compiled(x).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 2.0 * step))
    assert state == {"steps": 14} and not recwarn.list


def test_a_backward_under_a_mode_runs_the_hook_as_python(backend):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def program(x):
        y = x.mul(2)
        y.register_hook(lambda grad: grad * 3)
        return y

    x = numbers(2)
    result = compiled_with(program, backend)(x)
    with Watching():
        result.sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 6.0))


def test_a_second_derivative_through_a_hook(backend):
    def program(x):
        y = x.sin()
        y.register_hook(lambda grad: grad * grad)
        return y.exp()

    sides = []
    for function in (program, compiled_with(program, backend)):
        x = numbers(3)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        sides.append((first, second))
    assert torch.equal(sides[0][0], sides[1][0]) and torch.allclose(sides[0][1], sides[1][1])


def test_errors_of_autograd_name_the_hook(backend):
    def too_short(grad):
        return grad[:1]

    def program(x):
        y = x.sin()
        y.register_hook(too_short)
        return y * x

    loss = compiled_with(program, backend)(numbers(3)).sum()
    with pytest.raises(RuntimeError, match="hook 'too_short' has changed the size of value"):
        loss.backward()


def retained(x):
    y = x * 2
    y.retain_grad()
    z = y.sin()
    z.retain_grad()
    z.sum().backward()
    return y, z


def test_a_tensor_that_retains_its_gradient_says_so_after_the_backward(backend):
    def observe(function, size):
        y, z = function(torch.ones(size, requires_grad=True))
        return {"says": (y.retains_grad, z.retains_grad), "gradients": (y.grad, z.grad)}

    agree(retained, observe, 3, 3, 4, backend=backend)
