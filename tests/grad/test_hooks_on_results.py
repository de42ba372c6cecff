"""Hooks that a caller puts on some of the results of a compiled function, of which a backward uses others.

The results are those of one autograd node; each behaves as if it had its own, as in eager.
"""

import pytest
import torch

import bothways
from bothways.testing import difference

pytestmark = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


def siblings(x, y):
    shared = (x * y).sin()
    return (shared * y).tanh().exp() * y.cos(), (shared + y).sin().exp() * x


def observe(function, back, scale=1.0):
    x = torch.linspace(0.5, 2, 600).mul(scale).requires_grad_()
    y = torch.linspace(-1, 1, 600).requires_grad_()
    notes = []

    def noting(name, change=None):
        def hook(grad):
            notes.append((name, None if grad is None else grad.detach().clone()))
            return None if change is None else change(grad)

        return hook

    back(*function(x, y), noting)
    return {"notes": notes, "gradients": [x.grad, y.grad]}


def hooks_agree(back, backend):
    compiled = bothways.compile(siblings, backend=backend, fullgraph=True)
    for scale in (1.0, 1.0, 0.5):
        expected, found = observe(siblings, back, scale), observe(compiled, back, scale)
        assert difference(expected, found) is None
        assert expected["notes"]


def test_a_hook_on_a_result_that_the_backward_does_not_use_is_not_called(backend):
    def back(first, second, noting):
        first.register_hook(noting("first", lambda grad: grad.clamp(-1, 1)))
        second.register_hook(noting("second"))
        second.sum().backward()

    hooks_agree(back, backend)


def test_several_hooks_on_one_result_run_in_order_and_change_the_gradient(backend):
    def back(first, second, noting):
        first.register_hook(noting("one", lambda grad: grad * 2))
        gone = first.register_hook(noting("gone"))
        first.register_hook(noting("two"))
        first.register_hook(noting("three", lambda grad: grad + 1))
        gone.remove()
        (first.sum() + second.sum()).backward()

    hooks_agree(back, backend)


def test_a_result_that_is_used_by_a_later_backward_is_told_then(backend):
    def back(first, second, noting):
        first.register_hook(noting("first"))
        second.register_hook(noting("second"))
        second.sum().backward(retain_graph=True)
        first.sum().backward()

    hooks_agree(back, backend)


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_multi_hook_on_results_of_which_one_is_used(mode, backend):
    def back(first, second, noting):
        note = noting(mode)

        def together(grads):
            for grad in grads if isinstance(grads, (list, tuple)) else [grads]:
                note(grad)

        torch.autograd.graph.register_multi_grad_hook((first, second), together, mode=mode)
        second.sum().backward()

    hooks_agree(back, backend)


def test_a_hook_and_a_retained_gradient_on_one_result(backend):
    def back(first, second, noting):
        first.retain_grad()
        first.register_hook(noting("first", lambda grad: grad * 3))
        second.sum().backward(retain_graph=True)
        assert first.grad is None
        first.sum().backward()
        noting("kept")(first.grad)

    hooks_agree(back, backend)


def test_a_hook_on_a_result_that_is_not_used_when_the_whole_backward_is_captured(backend):
    def back(first, second, noting):
        first.register_hook(noting("first"))
        second.register_hook(noting("second", lambda grad: grad * 2))
        with bothways.autograd.capture(bothways.compile(backend=backend)):
            second.sum().backward()

    hooks_agree(back, backend)


def test_a_hook_that_gives_back_something_else_is_refused(backend):
    compiled = bothways.compile(siblings, backend=backend)
    for function in (siblings, compiled):
        first, second = function(torch.ones(600, requires_grad=True), torch.ones(600, requires_grad=True))
        first.register_hook(lambda grad: "no tensor")
        with pytest.raises(TypeError, match="str"):
            (first.sum() + second.sum()).backward()
