"""Hooks on tensors that are changed in place afterwards: a hook belongs to the history the tensor had."""

import pytest
import torch
from hooking import BACKENDS, agree, numbers
from torch import nn

import bothways

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def doubled(grad):
    return grad * 2


def test_the_tensor_itself_is_changed(backend):
    def program(x):
        y = x * 2
        y.register_hook(doubled)
        y.mul_(3)
        return y.sin()

    agree(program, backend)


def test_hooks_before_between_and_after_changes_keep_their_order(backend):
    log = []

    def program(x):
        y = x * 2
        y.register_hook(lambda grad: log.append("first") or grad * 2)
        y.register_hook(lambda grad: log.append("second") or grad + 1)
        y.mul_(3)
        y.register_hook(lambda grad: log.append("third") or grad * 5)
        y.add_(1)
        y.register_hook(lambda grad: log.append("fourth") or grad - 1)
        return y.sin()

    agree(program, backend, watch=lambda: log, reset=log.clear)


def test_something_else_is_changed(backend):
    def program(x):
        y = x * 2
        y.register_hook(doubled)
        counter = torch.zeros(3)
        counter.add_(1)
        return y.sin(), counter

    agree(program, backend)


def test_an_input_without_gradient_is_changed(backend):
    def program(x, buffer):
        y = x * 2
        y.register_hook(doubled)
        buffer.add_(1)
        return y.sin() * buffer

    agree(program, backend, make=lambda size: (numbers(size), torch.ones(size)))


def test_the_base_of_a_view_is_changed(backend):
    log = []

    def program(x):
        y = x * 2
        view = y[1:]
        view.register_hook(lambda grad: log.append(grad.shape) or grad * 3)
        y.mul_(2)
        return y.sin(), view.cos()

    agree(program, backend, watch=lambda: log, reset=log.clear)


def test_a_view_of_the_tensor_is_changed(backend):
    log = []

    def program(x):
        y = x * 2
        y.register_hook(lambda grad: log.append(grad.shape) or grad * 3)
        y[1:].mul_(2)
        return y.sin()

    agree(program, backend, watch=lambda: log, reset=log.clear)


def test_a_view_is_changed_by_a_function_whose_name_does_not_say_so(backend):
    def program(x):
        y = x * 2
        y.register_hook(lambda grad: grad + 1)
        torch.nn.functional.relu(y[1:], True)
        return y.sin()

    agree(program, backend)


def test_an_input_is_hooked_and_something_computed_is_changed(backend):
    def program(x):
        x.register_hook(doubled)
        y = x * 2
        y.exp_()
        return y

    agree(program, backend)


def test_gradients_are_retained_of_the_tensor_as_it_was(backend):
    def program(x):
        y = x * 2
        y.retain_grad()
        z = y.sin()
        z.mul_(2)
        return y, z

    agree(program, backend)


def test_a_handle_of_a_hook_that_went_before_the_change(backend):
    def program(x):
        y = x * 2
        handle = y.register_hook(doubled)
        y.mul_(3)
        return y, handle

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for remove, expected in ((False, 12.0), (True, 6.0)):
        x = numbers(3)
        y, handle = compiled(x)
        if remove:
            handle.remove()
        y.sum().backward()
        assert torch.equal(x.grad, torch.full((3,), expected))


def test_removed_before_the_change(backend):
    def program(x):
        y = x * 2
        y.register_hook(doubled).remove()
        y.mul_(3)
        return y

    agree(program, backend)


def test_a_hook_that_closes_over_what_is_computed_later(backend):
    def program(x):
        y = x * 2
        y.register_hook(lambda grad: grad * scale)
        y.mul_(3)
        scale = y.detach().abs()
        return y.sin()

    agree(program, backend)


def test_the_node_of_a_tensor_that_is_changed(backend):
    log = []

    def program(x):
        y = x.sin()
        y.grad_fn.register_hook(lambda inputs, outputs: log.append(len(inputs)) or (inputs[0] * 2,))
        node = y.grad_fn
        y.mul_(3)
        return y, node.register_prehook(lambda outputs: (outputs[0] + 1,))

    agree(program, backend, watch=lambda: log, reset=log.clear)


def test_several_tensors_of_which_one_is_changed(backend):
    log = []

    def program(x):
        a, b = x.sin(), x.cos()
        torch.autograd.graph.register_multi_grad_hook([a, b], lambda grads: log.append([g.tolist() for g in grads]))
        a.mul_(2)
        return a * b

    agree(program, backend, watch=lambda: log, reset=log.clear)


def test_running_statistics_are_changed_behind_a_hook(backend):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    state = {name: value.clone() for name, value in norm.state_dict().items()}

    def program(x):
        y = x * 2
        y.register_hook(doubled)
        return norm(y.reshape(-1, 3)).exp()

    agree(
        program,
        backend,
        make=lambda size: (numbers(size * 3),),
        watch=lambda: [value.double().round(decimals=5).tolist() for value in norm.state_dict().values()],
        reset=lambda: norm.load_state_dict(state),
    )


def refused(grad):
    raise ValueError("no gradient is wanted")


def test_an_argument_that_asks_for_a_gradient_inside_is_hooked_then(backend):
    def program(x):
        x.requires_grad_()
        x.register_hook(refused)
        try:
            (x * 3).sum().backward()
        except ValueError as error:
            return str(error)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        seen = []
        for function in (program, compiled):
            x = torch.ones(3)
            seen.append((function(x), x.requires_grad, x.grad, len(x._backward_hooks)))
            with pytest.raises(ValueError, match="no gradient"):
                (x * 5).sum().backward()
        assert seen[0] == seen[1]
