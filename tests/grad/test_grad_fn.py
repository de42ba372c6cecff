"""``grad_fn`` inside compiled functions: asked for, returned, hooked; and hooks that wait for several gradients."""

import pytest
import torch
from hooking import BACKENDS, agree, numbers

import bothways

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
MULTI = torch.autograd.graph.register_multi_grad_hook


def test_whether_there_is_one_decides(backend):
    def program(x, y):
        a = x * 2 if x.grad_fn is None else x * 3
        b = y * 2 if y.grad_fn is None else y * 3
        return a if a.grad_fn is not None and not a.is_leaf else a.detach(), b

    agree(program, backend, make=lambda size: (numbers(size), numbers(size) + 1))


def test_a_leaf_instead_of_a_result_is_noticed(backend):
    def program(x):
        return x * (2 if x.grad_fn is None else 3)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for x in (numbers(3), numbers(3) * 1, numbers(3), numbers(3).detach()):
        assert torch.equal(compiled(x), program(x))


def test_none_without_gradients(backend):
    def program(x):
        with torch.no_grad():
            y = x * 2
        return x.sin(), y.grad_fn is None, y.is_leaf

    result = bothways.compile(program, backend=backend, fullgraph=True)(numbers(3))
    assert result[1:] == (True, True)


def test_returned_it_is_eagers_own(backend):
    def program(x):
        y = x.sin()
        z = y * 2
        return z, y.grad_fn, z.grad_fn

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        z, sin, mul = compiled(numbers(3))
        assert sin.name() == "SinBackward0" and mul is z.grad_fn and mul.name() == "MulBackward0"


def test_of_one_of_several_results(backend):
    def program(x):
        values, _ = x.reshape(2, -1).max(dim=0)
        return values.sin(), values.grad_fn

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    assert compiled(numbers(4))[1].name() == program(numbers(4))[1].name()


def test_the_name_of_an_inputs_node_is_guarded(backend):
    def program(x):
        return x * (2 if x.grad_fn.name() == "SinBackward0" else 3)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for x in (numbers(3).sin(), numbers(3).sin(), numbers(3).cos()):
        assert torch.equal(compiled(x), program(x))
    assert len(bothways.history(compiled)) == 2


def test_what_only_eager_knows_runs_as_plain_python(backend):
    def program(x):
        y = x.sin()
        return y, type(y.grad_fn).__name__, y.grad_fn.name(), y.grad_fn.next_functions[0][1]

    assert bothways.compile(program, backend=backend)(numbers(3))[1:] == program(numbers(3))[1:]


def test_one_node_is_one_object(backend):
    def program(x):
        y, z = x.sin(), x.cos()
        return y if y.grad_fn is y.grad_fn and y.grad_fn is not z.grad_fn else z

    agree(program, backend)


def test_hooks_of_a_node_see_and_replace_gradients(backend):
    log = []

    def program(x):
        y = x.sin()
        z = y * y
        z.grad_fn.register_hook(lambda inputs, outputs: log.append((len(inputs), len(outputs))))
        y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 3,))
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1,))
        return z.exp()

    agree(program, backend, watch=lambda: log, reset=log.clear)


def test_handles_of_node_hooks(backend):
    def program(x):
        y = x.sin()
        kept = y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 2,))
        gone = y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 100,))
        gone.remove()
        return y.exp(), kept

    agree(program, backend)
    x = numbers(3)
    y, handle = bothways.compile(program, backend=backend, fullgraph=True)(x)
    handle.remove()
    y.sum().backward()
    assert torch.equal(x.grad, (x.sin().exp() * x.cos()).detach())


def test_tensor_hooks_and_node_hooks_in_one_function(backend):
    log = []

    def program(x):
        y = x.sin()
        y.register_hook(lambda grad: log.append("tensor"))
        y.grad_fn.register_prehook(lambda outputs: log.append("before"))
        y.grad_fn.register_hook(lambda inputs, outputs: log.append("after"))
        y.retain_grad()
        return y.exp()

    agree(program, backend, watch=lambda: log, reset=log.clear)


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_hook_for_several_tensors(mode, backend):
    log = []

    def seen(grads):
        log.append(grads.tolist() if mode == "any" else [None if g is None else g.tolist() for g in grads])

    def program(x, y):
        a = x * y
        b = a.sin()
        MULTI((x, a, b, y), seen, mode=mode)
        return a + b

    agree(program, backend, make=lambda size: (numbers(size), numbers(size)), watch=lambda: log, reset=log.clear)


def test_only_the_gradients_that_are_computed_are_waited_for(backend):
    log = []

    def program(x):
        a, b = x.sin(), x.cos()
        MULTI([a, b], lambda grads: log.append([g is not None for g in grads]))
        return a, b

    sides = []
    for function in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        log.clear()
        for _ in range(2):
            a, b = function(numbers(3))
            a.sum().backward(retain_graph=True)
            b.sum().backward(retain_graph=True)
            (a + b).sum().backward()
        sides.append(list(log))
    assert sides[0] == sides[1] and [True, False] in sides[0] and [True, True] in sides[0]


def test_the_handle_of_several_hooks(backend):
    log = []

    def program(x):
        y = x.sin()
        kept = MULTI([x, y], lambda grads: log.append("kept"))
        MULTI([y], lambda grads: log.append("gone")).remove()
        return y, kept

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    y, handle = compiled(numbers(3))
    y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()
    assert log == ["kept"]
