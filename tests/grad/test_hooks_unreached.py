"""Hooks on tensors that a backward does not come to: eager never calls them, and neither does a compiled function.

A tensor may reach the loss only through what cuts autograd's graph, or through results of which this backward uses
others. Whatever is behind it is then left alone as well: custom functions get no zeros, saved tensors stay.
"""

import pytest
import torch
from agreeing import agree

import bothways
from bothways.testing import difference

pytestmark = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


class Noting:
    """Hooks that note what they are given, and give back what they are told to."""

    def __init__(self):
        self.notes = []

    def hook(self, name, change=None):
        def hook(*grads):
            self.notes.append((name, [None if grad is None else grad.detach().clone() for grad in flat(grads)]))
            return None if change is None else change(grads[0])

        return hook


def flat(grads):
    for grad in grads:
        if isinstance(grad, torch.nn.Module):
            continue
        if isinstance(grad, (tuple, list)):
            yield from flat(grad)
        else:
            yield grad


def inputs(scale=1.0):
    x = torch.linspace(0.5, 2, 6).mul(scale).requires_grad_()
    return x, torch.linspace(-1, 1, 6).requires_grad_()


def everything(outputs, x, y):
    sum(output.sum() for output in outputs if output.requires_grad).backward()


def notes_agree(program, backend, back=everything):
    """Call plainly and compiled, twice alike and once with other data; compare outputs, gradients and the notes."""

    def observe(function, scale):
        noting = Noting()
        x, y = inputs(scale)
        outputs = function(x, y, noting)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        kept = back(outputs, x, y)
        return {
            "outputs": [output.detach() for output in outputs],
            "whether they need gradients": [output.requires_grad for output in outputs],
            "gradients": (x.grad, y.grad),
            "notes of the hooks, in order": noting.notes,
            "what the backward gives": kept,
        }

    agree(program, observe, 1.0, 1.0, 3.0, backend=backend)


def clamped(grad):
    return grad.clamp(-0.5, 0.5)


# Ways from a tensor to the result that no gradient takes.
CUTS = {
    "detach": lambda v: v.detach(),
    "comparison": lambda v: (v > 0.2).float(),
    "integers": lambda v: v.long().float(),
    "round trip through bool": lambda v: v.bool().to(v.dtype),
    "argmax": lambda v: v.argmax().float(),
    "isnan": lambda v: v.isnan().float(),
    "zeros_like": lambda v: torch.zeros_like(v),
    "not at all": lambda v: 1.0,
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_hook_behind_a_cut_is_not_called(cut, backend):
    way = CUTS[cut]

    def program(x, y, noting):
        v = x * y
        v.register_hook(noting.hook("v", clamped))
        return way(v) + y

    notes_agree(program, backend)


def test_a_hook_behind_no_grad_is_not_called(backend):
    def program(x, y, noting):
        v = x * y
        v.register_hook(noting.hook("v"))
        with torch.no_grad():
            w = v.sin() * 2
        return w + y

    notes_agree(program, backend)


def test_several_hooks_on_several_tensors_of_which_some_are_reached(backend):
    def program(x, y, noting):
        v = x * y
        w = x.sin()
        for tensor, name in ((v, "v"), (w, "w")):
            tensor.register_hook(noting.hook(f"{name} first"))
            tensor.register_hook(noting.hook(f"{name} second", clamped))
            tensor.register_hook(noting.hook(f"{name} third"))
        return v.detach() * w + y

    notes_agree(program, backend)


def test_retain_grad_of_a_tensor_that_is_not_reached(backend):
    kept = []

    def program(x, y, noting):
        v = x * y
        v.retain_grad()
        kept[:] = [v]
        return v.detach() + y

    notes_agree(program, backend, lambda outputs, x, y: everything(outputs, x, y) or kept[0].grad)


def test_a_multi_hook_waits_for_those_that_are_reached(backend):
    def program(x, y, noting):
        v, w = x * y, x.sin()
        torch.autograd.graph.register_multi_grad_hook([v, w], noting.hook("all"))
        torch.autograd.graph.register_multi_grad_hook([v, w], noting.hook("any"), mode="any")
        return v.detach() + w + y

    notes_agree(program, backend)


def test_hooks_of_nodes_that_are_not_reached(backend):
    def program(x, y, noting):
        v = x * y
        v.grad_fn.register_hook(lambda given, taken: noting.hook("post")(given, taken))
        v.grad_fn.register_prehook(lambda taken: noting.hook("pre")(taken))
        return v.detach() + y

    notes_agree(program, backend)


def test_results_that_share_something_and_lead_to_different_tensors(backend):
    def program(x, y, noting):
        v = x * 2
        v.register_hook(noting.hook("v"))
        shared = y.sin()
        return v * shared, shared * 3

    notes_agree(program, backend)
    notes_agree(program, backend, lambda outputs, x, y: outputs[1].sum().backward())
    notes_agree(program, backend, lambda outputs, x, y: outputs[0].sum().backward())


def test_a_gradient_that_comes_with_the_next_backward(backend):
    def program(x, y, noting):
        v = x * 2
        v.register_hook(noting.hook("v"))
        shared = y.sin()
        return v * shared, shared * 3

    def one_after_the_other(outputs, x, y):
        outputs[1].sum().backward(retain_graph=True)
        between = x.grad
        outputs[0].sum().backward()
        return between

    notes_agree(program, backend, one_after_the_other)


def test_what_is_behind_an_unreached_input_is_not_used_up(backend):
    def inner(v, y):
        return v.detach() + y.sin() * 2

    compiled = bothways.compile(inner, backend=backend)

    def outcome(function):
        noting = Noting()
        x, y = inputs()
        v = x * y
        v.register_hook(noting.hook("v"))
        function(v, y).sum().backward()
        v.sum().backward()
        return x.grad, y.grad, noting.notes

    for _ in range(2):
        assert difference(outcome(inner), outcome(compiled)) is None


def test_a_custom_function_behind_an_unreached_input_is_given_no_zeros(backend):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def cut(v, y):
        return v.detach() + y.sin(), y * 2

    def uneven(v, y):
        shared = y.sin()
        return v * shared, shared * 3

    for inner in (cut, uneven):
        compiled = bothways.compile(inner, backend=backend)

        def outcome(function):
            x, y = inputs()
            function(Doubled.apply(x), y)[1].sum().backward()
            return x.grad, y.grad

        for _ in range(2):
            assert difference(outcome(inner), outcome(compiled)) is None  # noqa: B023


def test_a_leaf_with_a_hook_that_only_other_results_need(backend):
    def inner(v, y):
        shared = y.sin()
        return v * shared, shared * 3

    compiled = bothways.compile(inner, backend=backend)

    def outcome(function, used):
        noting = Noting()
        x, y = inputs()
        x.register_hook(noting.hook("x"))
        x.register_post_accumulate_grad_hook(noting.hook("accumulated"))
        function(x, y)[used].sum().backward()
        return x.grad, y.grad, noting.notes

    for used in (1, 0, 1):
        assert difference(outcome(inner, used), outcome(compiled, used)) is None


def test_a_custom_function_is_told_what_eager_tells_it(backend):
    def function_of(materialize):
        class Two(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, y, noting):
                ctx.set_materialize_grads(materialize)
                ctx.noting = noting
                return x * 2, y * 3

            @staticmethod
            def backward(ctx, one, other):
                ctx.noting.hook("backward")(one, other)
                return (None if one is None else one * 2), (None if other is None else other * 3), None

        return Two

    for materialize in (True, False):
        cls = function_of(materialize)

        def program(x, y, noting):
            v, w = cls.apply(x, y, noting)  # noqa: B023
            v.register_hook(noting.hook("v"))
            w.register_hook(noting.hook("w"))
            return v.detach() + w

        notes_agree(program, backend)


def test_module_backward_hooks_whose_inputs_are_not_reached(backend):
    class Apart(torch.nn.Module):
        def forward(self, x, y):
            return x.detach() + y.sin(), x * 2

    def program(x, y, noting):
        module = modules[0]
        v = x * y
        v.register_hook(noting.hook("v"))
        return module(v, y)

    noting_of_module = Noting()
    modules = [Apart()]
    modules[0].register_full_backward_hook(noting_of_module.hook("module"))
    modules[0].register_full_backward_pre_hook(noting_of_module.hook("module before"))

    def first(outputs, x, y):
        noting_of_module.notes.clear()
        outputs[0].sum().backward()
        return list(noting_of_module.notes)

    notes_agree(program, backend, first)


def test_hooks_under_no_grad_are_refused_alike(backend):
    def program(x, y, noting):
        with torch.no_grad():
            v = x * y
            try:
                v.register_hook(noting.hook("v"))
            except RuntimeError as error:
                noting.notes.append(str(error))
        return v + y

    notes_agree(program, backend)


def test_sizes_that_change_and_a_hook_that_is_not_reached(backend):
    def program(x, y, noting):
        v = x * y
        v.register_hook(noting.hook("v"))
        return v.detach() + y.sin() * 2

    compiled = bothways.compile(program, backend=backend, dynamic=True)
    for size in (4, 6, 9):
        sides = []
        for function in (program, compiled):
            noting = Noting()
            x, y = torch.linspace(0, 1, size).requires_grad_(), torch.linspace(1, 2, size).requires_grad_()
            function(x, y, noting).sum().backward()
            sides.append((x.grad, y.grad, noting.notes))
        assert difference(*sides) is None


def beside(way):
    """A hooked tensor, and results that are computed beside it."""

    def program(x, y, noting):
        v = x * y + 1
        c = way(v)
        c.register_hook(noting.hook("c"))
        return v.sin() * 2, c * 3

    return program


# Ways to what is hooked, from a tensor that others are computed from as well.
WAYS = {
    "an operation": lambda v: v * 2,
    "several": lambda v: (v[1:] * 2).exp(),
    "a view": lambda v: v[1:3],
    "one of several": lambda v: v.unbind(0)[0],
    "one of several that are computed": lambda v: v.max(0)[0],
    "in place": lambda v: v.clone().add_(1),
    "part of a view": lambda v: v.reshape(2, 3)[0].view(-1)[:1] * 1,
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wanted", [[0], [1], [0, 1]], ids=["beside", "the hooked", "both"])
def test_a_hook_beside_what_a_backward_comes_to_is_not_called(way, wanted, backend):
    def back(outputs, x, y):
        sum(outputs[place].sum() for place in wanted).backward()

    notes_agree(beside(WAYS[way]), backend, back)


def test_of_several_hooked_tensors_only_those_are_told_that_are_reached(backend):
    def program(x, y, noting):
        v = x * y + 1
        c, d, e = v * 2, v.exp(), v[0] * 3
        for name, tensor in (("c", c), ("d", d), ("e", e), ("v", v)):
            tensor.register_hook(noting.hook(name))
        torch.autograd.graph.register_multi_grad_hook([c, d], noting.hook("both"))
        return (d.sin() * 2,)

    notes_agree(program, backend)


def test_a_gradient_is_kept_beside_what_a_backward_comes_to(backend):
    def program(x, y, noting):
        v = x * y + 1
        c = v[0] * 2
        c.retain_grad()
        return v.sin() * 2, c

    def back(outputs, x, y):
        outputs[0].sum().backward()
        return outputs[1].grad

    notes_agree(program, backend, back)


def test_a_number_is_read_after_a_hook_that_is_not_reached(backend):
    def program(x, y, noting):
        v = x * 2
        z = x + v.sum()
        c = z[0].view(-1) * 1
        c.register_hook(noting.hook("c"))
        number = int((z + 1).sum().sign())
        return ((v - z).sin() * number,)

    notes_agree(program, backend)
