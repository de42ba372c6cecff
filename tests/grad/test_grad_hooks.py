"""Tensor hooks registered inside compiled functions: none lost, none doubled, in order, with live state."""

import functools

import pytest
import torch
from agreeing import agree

import bothways

BACKENDS = ["eager", "aot_eager"]
pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def hooks_agree(program, backend, runs=2):
    """Run plainly and compiled, backward each time; compare what ``program`` returned and the input's gradient."""

    def observe(function, _):
        x = torch.linspace(0.5, 2, 4).requires_grad_()
        output = function(x)
        output.sum().backward()
        kept = output.grad if output.retains_grad else None
        return {"output": output, "gradient of the input": x.grad, "gradient of the output": kept}

    agree(program, observe, *range(runs), backend=backend, fullgraph=True)


def double(grad):
    return grad * 2


class Scaler:
    def __init__(self):
        self.seen = []

    def __call__(self, grad):
        self.seen.append(grad.shape)
        return grad * 5

    def halve(self, grad):
        return grad / 2


SCALER = Scaler()
CALLABLES = {
    "lambda": lambda grad: grad * 3,
    "function": double,
    "bound method": SCALER.halve,
    "partial": functools.partial(torch.mul, 4.0),
    "callable object": SCALER,
    "returns None": lambda grad: None,
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_every_kind_of_callable(kind, backend):
    hook = CALLABLES[kind]

    def program(x):
        y = x.sin()
        y.register_hook(hook)
        return y * y

    hooks_agree(program, backend)


def test_on_inputs_intermediates_and_outputs(backend):
    def program(x):
        x.register_hook(lambda grad: grad + 1)
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        z = y.exp()
        z.register_hook(lambda grad: grad - 0.5)
        return z

    hooks_agree(program, backend)


def test_several_hooks_run_in_the_order_of_registration(backend):
    order = []

    def program(x):
        y = x * 2
        y.register_hook(lambda grad: order.append("first") or grad * 2)
        y.register_hook(lambda grad: order.append("second") or grad + 1)
        return y.sin()

    hooks_agree(program, backend, runs=1)
    assert order == ["first", "second"] * 2


def test_a_hook_closes_over_what_the_function_computed(backend):
    def program(x):
        y = x * 2
        scale = y.detach().abs()
        y.register_hook(lambda grad: grad * scale)
        return y.cos()

    hooks_agree(program, backend)


def test_a_hook_sees_state_as_it_is_when_the_backward_runs(backend):
    state = {"factor": 1.0}

    def program(x):
        y = x * 2
        y.register_hook(lambda grad: grad * state["factor"])
        return y.sum()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    loss = compiled(x)
    state["factor"] = 10.0
    loss.backward()
    assert torch.equal(x.grad, torch.full((3,), 20.0))


def test_another_hook_with_the_same_code_needs_no_new_program(backend):
    def program(x, hook):
        y = x * 2
        y.register_hook(hook)
        return y.sum()

    def scaled(factor):
        return lambda grad: grad * factor

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for factor in (1.0, 2.0, 3.0):
        x = torch.ones(3, requires_grad=True)
        compiled(x, scaled(factor)).backward()
        assert torch.equal(x.grad, torch.full((3,), 2 * factor))
    assert len(bothways.history(compiled)) == 1
    x = torch.ones(3, requires_grad=True)
    compiled(x, double).backward()
    assert torch.equal(x.grad, torch.full((3,), 4.0))


def test_handles_are_real(backend):
    handles = []

    def program(x):
        y = x * 2
        handle = y.register_hook(double)
        handles.append(handle)
        return y.sum(), handle

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for expected, remove in ((4.0, False), (2.0, True)):
        x = torch.ones(3, requires_grad=True)
        loss, handle = compiled(x)
        assert handle is handles[-1]
        if remove:
            handle.remove()
            handle.remove()
        loss.backward()
        assert torch.equal(x.grad, torch.full((3,), expected))


def test_a_hook_removed_inside_never_runs(backend):
    def program(x):
        y = x * 2
        handle = y.register_hook(double)
        handle.remove()
        return y

    hooks_agree(program, backend)


def test_retain_grad(backend):
    def program(x):
        y = x * 2
        z = y.sin()
        z.retain_grad()
        return z

    hooks_agree(program, backend)


def test_post_accumulate_hook_on_a_parameter(backend):
    def grow(parameter):
        parameter.grad.mul_(100)

    def program(weight):
        weight.register_post_accumulate_grad_hook(grow)
        return (weight * 3).sum()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    weight = torch.nn.Parameter(torch.ones(2))
    compiled(weight).backward()
    assert torch.equal(weight.grad, torch.full((2,), 300.0))


def test_a_tensor_without_gradient_refuses_as_in_eager(backend):
    def program(x):
        x.register_hook(double)
        return x

    messages = []
    for function in (program, bothways.compile(program, backend=backend)):
        with pytest.raises(RuntimeError) as caught:
            function(torch.ones(2))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
