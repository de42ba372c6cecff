"""Saved-tensor hooks inside compiled functions: packed when the graph runs, unpacked when the backward does."""

import functools

import pytest
import torch
from hooking import BACKENDS, agree, numbers
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

import bothways
from bothways.errors import Unsupported

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
LOG, OTHER = [], []
COUNT = 0


def pack(tensor):
    LOG.append(("pack", tensor.tolist()))
    return tensor * 2


def unpack(tensor):
    LOG.append(("unpack", tensor.tolist()))
    return tensor / 2


def check(program, backend, **kwargs):
    def reset():
        LOG.clear()
        OTHER.clear()

    agree(program, backend, watch=lambda: (LOG, OTHER), reset=reset, **kwargs)


def test_what_is_saved_between_is_packed(backend):
    def program(x):
        y = x.sin()
        with saved_tensors_hooks(pack, unpack):
            z = (y * y).exp()
        return z * x

    check(program, backend)


def test_one_inside_the_other(backend):
    def program(x):
        with saved_tensors_hooks(pack, unpack):
            y = x * x
            with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
                y = y * y
            return y * y

    check(program, backend)


def test_two_after_each_other_with_hooks_and_effects_between(backend):
    def program(x):
        OTHER.append("before")
        with saved_tensors_hooks(pack, unpack):
            y = x.exp()
        y.register_hook(lambda grad: grad * 2)
        OTHER.append("between")
        with saved_tensors_hooks(pack, unpack):
            z = y.sin()
        return z

    check(program, backend)


def test_functions_made_inside(backend):
    def program(x):
        scale = 4.0
        with saved_tensors_hooks(lambda t: t * scale, lambda t: t / scale):
            return x.exp() * x

    check(program, backend)


def test_partials_and_callable_objects(backend):
    class Counting:
        def __init__(self):
            self.calls = 0

        def __call__(self, tensor):
            self.calls += 1
            OTHER.append(self.calls)
            return tensor * 2

    def program(x, counting):
        with saved_tensors_hooks(counting, functools.partial(torch.mul, 0.5)):
            return x.exp() * x

    check(program, backend, make=lambda size: (numbers(size), Counting()))


def test_counting_in_a_closure_and_in_a_global(backend):
    count = 0

    def counted(tensor):
        global COUNT
        nonlocal count
        COUNT += 1
        count += 1
        return tensor.detach()

    def reset():
        global COUNT
        nonlocal count
        COUNT = count = 0

    def program(x):
        with saved_tensors_hooks(counted, lambda t: t):
            return x.exp() * x

    agree(program, backend, watch=lambda: (COUNT, count), reset=reset)


def test_methods_of_the_module_that_is_called(backend):
    class Offloading(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
            self.count, self.sizes = 0, []

        def pack(self, tensor):
            self.count += 1
            self.sizes.append(tensor.numel())
            return tensor.detach().clone()

        def forward(self, x):
            with saved_tensors_hooks(self.pack, lambda t: t):
                return self.layers(x.reshape(-1, 2))

    torch.manual_seed(0)
    module = Offloading()

    def reset():
        module.count, module.sizes = 0, []

    agree(lambda x: module(x), backend, watch=lambda: (module.count, module.sizes), reset=reset)


def test_a_class_of_the_users_and_an_object_from_outside(backend):
    class Doubling(saved_tensors_hooks):
        def __init__(self, factor):
            super().__init__(lambda t: t * factor, lambda t: t / factor)

    outside = saved_tensors_hooks(pack, unpack)

    def program(x):
        with Doubling(2.0):
            y = x.exp()
        with outside:
            return y.sin()

    check(program, backend)


def test_saved_on_the_cpu(backend):
    def program(x):
        with save_on_cpu():
            y = x.exp()
        with save_on_cpu(pin_memory=False):
            return y * x

    check(program, backend)


def test_forbidden_inside(backend):
    def program(x):
        with disable_saved_tensors_hooks("not here"):
            y = x * x
            try:
                with save_on_cpu():
                    y = y.exp()
            except RuntimeError as error:
                OTHER.append(str(error))
        with save_on_cpu():
            return y.sin()

    check(program, backend)


def test_around_the_call_they_see_what_eager_would_show_them(backend):
    def program(x):
        return x.exp()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for function in (compiled, compiled):
        LOG.clear()
        x = numbers(3)
        with saved_tensors_hooks(pack, unpack):
            y = function(x)
        y.sum().backward()
        assert torch.equal(x.grad, x.detach().exp()) and {kind for kind, _ in LOG} == {"pack", "unpack"}


def test_outside_hooks_are_back_after_the_inner_ones(backend):
    seen = []

    def program(x):
        with saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
            y = x.exp()
        return y.sin()

    sides = []
    for function in (program, bothways.compile(program, backend="eager", fullgraph=True)):
        for _ in range(2):
            seen.clear()
            x = numbers(3)
            with saved_tensors_hooks(lambda t: seen.append(t.tolist()) or t, lambda t: t):
                function(x).sum().backward()
            sides.append((list(seen), x.grad.tolist()))
    assert sides[0] == sides[1] == sides[2] == sides[3]


@pytest.mark.parametrize("what", ["reads", "changes"])
def test_objects_shared_with_the_function_stop_the_capture(what, backend):
    def program(x):
        if what == "changes":
            LOG.append("mine")
        with saved_tensors_hooks(pack, unpack):
            y = x.exp()
        return y, len(LOG) if what == "reads" else None

    with pytest.raises(Unsupported, match=r"pack hook[^$]*with saved_tensors_hooks"):
        bothways.compile(program, backend=backend, fullgraph=True)(numbers(3))
    sides = []
    for function in (program, bothways.compile(program, backend=backend)):
        LOG.clear()
        y, length = function(numbers(3))
        y.sum().backward()
        sides.append((length, list(LOG)))
    assert sides[0] == sides[1]


def test_an_object_that_becomes_shared_is_noticed(backend):
    mine, theirs = [], []

    def program(x, items):
        with saved_tensors_hooks(lambda t: theirs.append(1) or t, lambda t: t):
            y = x.exp()
        return y, len(items)

    compiled = bothways.compile(program, backend=backend)
    for items in (mine, mine, theirs, mine):
        theirs.clear()
        expected = program(numbers(3), items)[1]
        theirs.clear()
        assert compiled(numbers(3), items)[1] == expected


def test_a_variable_of_the_function_that_pack_changes(backend):
    def program(x):
        count = 0

        def counted(tensor):
            nonlocal count
            count += 1
            return tensor

        with saved_tensors_hooks(counted, lambda t: t):
            y = x.exp() * x
        return y, count

    assert bothways.compile(program, backend=backend)(numbers(3))[1] == program(numbers(3))[1] > 0


def test_a_pack_hook_that_fails_leaves_nothing_behind(backend):
    def failing(tensor):
        OTHER.append("tried")
        raise ValueError("cannot pack")

    def program(x):
        with saved_tensors_hooks(failing, unpack):
            return x.exp()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for function in (program, compiled, compiled):
        OTHER.clear()
        with pytest.raises(ValueError, match="cannot pack"):
            function(numbers(3))
        assert OTHER == ["tried"]
        numbers(3).exp()
        assert OTHER == ["tried"]
