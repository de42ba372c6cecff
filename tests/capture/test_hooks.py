"""Tensor hooks inside compiled functions: what they are, where they are registered, what becomes of their handles."""

import functools

import pytest
import torch
from hooking import BACKENDS, agree, numbers
from torch.utils.hooks import RemovableHandle

import bothways

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def times_four(grad):
    return grad * 4


def halved(grad):
    return grad / 2


def tripled(grad):
    return grad * 3


HANDLE = None
CALLS = 0


class Holder:
    def __init__(self, value):
        self.value = value

    def add(self, grad):
        return grad + self.value

    __call__ = add


def compiled_with(program, backend):
    return bothways.compile(program, backend=backend, fullgraph=True)


def gradient(function, *others):
    x = numbers(3)
    function(x, *others).sum().backward()
    return x.grad


# Where hooks are registered.


def test_on_an_input_that_is_all_the_function_returns(backend):
    def program(x):
        x.register_hook(lambda grad: grad * 2)
        return x

    agree(program, backend)


def test_on_an_input_among_other_work(backend):
    def program(x, y):
        x.register_hook(times_four)
        return x, y * y

    agree(program, backend, make=lambda size: (numbers(size), torch.ones(size)))


def test_one_hook_on_an_input_and_on_what_is_computed_from_it(backend):
    def program(x):
        def local(grad):
            return grad * 2

        z = x * x
        x.register_hook(local)
        z.register_hook(local)
        return x, z

    agree(program, backend)


def test_on_a_parameter_of_a_module(backend):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(3.0))

        def forward(self, x):
            handle = self.scale.register_hook(halved)
            return x * self.scale, handle

    module, gradients = Scaled(), []
    for function in (module, compiled_with(module, backend)):
        module.scale.grad = None
        for _ in range(2):
            result, handle = function(numbers(4))
            result.sum().backward()
            handle.remove()
        gradients.append(module.scale.grad)
    assert torch.equal(*gradients)


def test_three_hooks_run_one_after_the_other(backend):
    def program(x):
        y = x + 1
        for hook in (times_four, halved, lambda grad: grad - 1):
            y.register_hook(hook)
        return y * x

    agree(program, backend)


def test_the_same_hook_twice(backend):
    def program(x):
        y = x * 2
        y.register_hook(times_four)
        y.register_hook(times_four)
        return y.sin()

    agree(program, backend)


def test_where_autograd_is_off(backend):
    def program(x):
        y = x * 2
        with torch.no_grad():
            y.register_hook(times_four)
        return y.sin()

    agree(program, backend)


def test_through_the_class(backend):
    def program(x):
        y = x * 2
        torch.Tensor.register_hook(y, times_four)
        torch.Tensor.register_hook(y, hook=halved)
        return y.sin()

    agree(program, backend)


# What hooks are.


def test_a_partial_with_keywords_made_inside(backend):
    def shifted(grad, *, by):
        return grad + by

    def program(x):
        y = x.mul(2)
        y.register_hook(functools.partial(shifted, by=3))
        y.register_hook(functools.partial(shifted, by=4))
        return y.mul(3)

    agree(program, backend)


@pytest.mark.parametrize("kind", ["append", "torch.neg", "bound method", "callable object"])
def test_callables_that_are_no_functions(kind, backend):
    seen = []
    holder = Holder(2.0)
    hooks = {"append": seen.append, "torch.neg": torch.neg, "bound method": holder.add, "callable object": holder}
    hook = hooks[kind]

    def program(x):
        y = x * 2
        y.register_hook(hook)
        return y.sin()

    agree(program, backend, watch=lambda: seen, reset=seen.clear)


def test_a_hook_that_removes_itself(backend):
    calls = []

    def program(x):
        y = x * 2

        def once(grad):
            calls.append(1)
            handle.remove()

        handle = y.register_hook(once)
        return y.sin()

    for function in (program, bothways.compile(program, backend=backend)):
        calls.clear()
        result = function(numbers(3))
        for _ in range(3):
            result.sum().backward(retain_graph=True)
        assert calls == [1]


# What they read and change when the backward runs.


def test_a_counter_in_an_object_decides(backend):
    class Counting:
        count = 0

        def hook(self, grad):
            self.count += 1
            return grad * grad if self.count % 2 else grad + grad

    counting = Counting()

    def program(x):
        y = x.mul(2)
        y.register_hook(counting.hook)
        y.register_hook(counting.hook)
        return y.mul(3)

    agree(program, backend, watch=lambda: counting.count, reset=lambda: vars(counting).clear())


def test_a_global_and_a_closure_variable_are_counted_up(backend):
    local = 0

    def count(grad):
        global CALLS
        nonlocal local
        CALLS += 1
        local += 2
        return grad * local

    def reset():
        global CALLS
        nonlocal local
        CALLS = local = 0

    def program(x):
        y = x * 2
        y.register_hook(count)
        return y.sin()

    agree(program, backend, watch=lambda: (CALLS, local), reset=reset)


def test_many_backwards_through_one_graph_count_every_time(backend):
    seen = []

    def program(x):
        y = x * 2
        y.register_hook(lambda grad: seen.append(len(seen)))
        return y.sin()

    result = compiled_with(program, backend)(numbers(3))
    for _ in range(20):
        result.sum().backward(retain_graph=True)
    assert seen == list(range(20))


def test_another_object_behind_the_hook_needs_no_new_program(backend):
    def program(x, holder):
        y = x.mul(2)
        y.register_hook(functools.partial(lambda grad, *, obj: grad + obj.value, obj=holder))
        return y.mul(3)

    compiled = compiled_with(program, backend)
    for value in (torch.tensor(88.0), torch.tensor(99.0), 11):
        assert torch.equal(gradient(compiled, Holder(value)), gradient(program, Holder(value)))
    assert len(bothways.history(compiled)) == 1


@pytest.mark.parametrize("on", ["input", "intermediate"])
def test_a_hook_that_was_exchanged_is_the_one_that_runs(on, backend):
    hook = times_four

    def program(x):
        y = x.mul(2)
        (x if on == "input" else y).register_hook(hook)
        return y.mul(3)

    compiled = compiled_with(program, backend)
    for hook in (times_four, halved, functools.partial(torch.mul, 7.0)):
        assert torch.equal(gradient(compiled), gradient(program))
    assert len(bothways.history(compiled)) == 1


def test_the_value_in_force_is_that_of_the_backward(backend):
    holder = Holder(1.0)

    def program(x):
        y = x * 2
        y.register_hook(holder.add)
        return y.sin().sum()

    gradients = []
    for function in (program, compiled_with(program, backend)):
        holder.value, x = 1.0, numbers(3)
        loss = function(x)
        holder.value = 10.0
        loss.backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


# Handles.


def test_a_handle_is_returned_as_one_object(backend):
    def program(x, z):
        handle = x.register_hook(times_four)
        return x, z * z, handle, handle

    compiled = compiled_with(program, backend)
    for _ in range(2):
        x = numbers(3)
        result, _, handle, other = compiled(x, torch.ones(2))
        assert isinstance(handle, RemovableHandle) and handle is other
        result.sum().backward()
        handle.remove()
        result.sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 5.0))


def test_removed_twice_inside_and_returned(backend):
    def program(x, z):
        handle = x.register_hook(times_four)
        z = z * z
        handle.remove()
        handle.remove()
        return x, z, handle

    x = numbers(3)
    result, _, handle = compiled_with(program, backend)(x, torch.ones(2))
    result.sum().backward()
    assert isinstance(handle, RemovableHandle) and torch.equal(x.grad, torch.ones(3))


def test_removed_inside_and_another_registered(backend):
    def program(x):
        y = x * 2
        handle = y.register_hook(times_four)
        z = y * y
        handle.remove()
        y.register_hook(tripled)
        return z

    agree(program, backend)


def test_a_handle_used_as_a_context_manager(backend):
    def program(x):
        y = x * 2
        with y.register_hook(times_four):
            z = y.sin()
        return z

    agree(program, backend)


def test_handles_kept_in_a_global_an_attribute_a_list_and_a_dictionary(backend):
    module, kept, named = torch.nn.Module(), [], {}

    def program(x):
        global HANDLE
        y = x * 2
        HANDLE = y.register_hook(times_four)
        module.handle = y.register_hook(halved)
        kept.append(y.register_hook(tripled))
        named["last"] = y.register_hook(lambda grad: grad + 1)
        return y.sin()

    def found():
        return [type(handle).__name__ for handle in (HANDLE, module.handle, kept[-1], named["last"])]

    agree(program, backend, watch=found, reset=kept.clear)
    for handle in (HANDLE, module.handle, kept[-1], named["last"]):
        handle.remove()


def test_the_handle_of_the_last_call_is_removed(backend):
    def program(x, holder):
        if holder.value is not None:
            holder.value.remove()
        holder.value = x.register_hook(times_four)
        return x * x

    sides = []
    for function in (program, compiled_with(program, backend)):
        x, holder = numbers(3), Holder(None)
        for _ in range(3):
            function(x, holder).sum().backward()
        sides.append((x.grad, type(holder.value)))
    assert torch.equal(sides[0][0], sides[1][0]) and sides[0][1] is sides[1][1]


def test_a_modules_hook_is_not_removed_behind_its_back(backend):
    module = torch.nn.Linear(3, 3)

    def program(x, handle):
        first = module(x)
        handle.remove()
        return first, module(x)

    sides = []
    for function in (program, bothways.compile(program, backend=backend)):
        handle = module.register_forward_hook(lambda m, args, out: out * 2)
        sides.append(function(numbers(3), handle))
    assert torch.equal(sides[0][0], sides[1][0]) and torch.equal(sides[0][1], sides[1][1])
    assert torch.equal(*sides[1]) is False


# Hooks after the gradient is there.


def test_a_post_accumulate_hook_changes_the_parameter_and_its_gradient(backend):
    def step(parameter):
        parameter.data.mul_(parameter.grad)
        parameter.grad.mul_(5)

    def program(x, y):
        x.register_post_accumulate_grad_hook(step)
        return x * y

    agree(program, backend, make=lambda size: (numbers(size), numbers(size)))


def test_a_post_accumulate_hook_frees_the_gradient(backend):
    seen = []

    def free(parameter):
        seen.append(parameter.grad.tolist())
        parameter.grad = None

    def program(x):
        handle = x.register_post_accumulate_grad_hook(free)
        return x * x, handle

    agree(program, backend, watch=lambda: seen, reset=seen.clear)


def test_a_hook_registered_outside_runs_once_a_backward(backend):
    def program(x, factor):
        return x * factor

    def double(parameter):
        parameter.grad *= 2

    compiled = compiled_with(program, backend)
    x = torch.ones(10, requires_grad=True)
    x.register_post_accumulate_grad_hook(double)
    for factor in range(3):
        x.grad = None
        compiled(x, torch.tensor(float(factor))).sum().backward()
        assert torch.equal(x.grad, torch.full((10,), 2.0 * factor))
