"""Gradients by some inputs, then by others, of a graph that is not retained: freed is what eager frees."""

import itertools
import weakref

import pytest
import torch
from observing import BACKENDS, agree, leaf, raised

import bothways
from bothways.torch_compat import SAVED_KNOW_VERSIONS

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def scaled_and_added(x, w):
    return x * 2 + w


def two_sides(x, w):
    return x.exp() + w.sin()


def product(x, w):
    return x.exp() * w.sin()


def results_that_share(x, w):
    shared = x + w
    return shared, shared.exp()


def three_losses(x, w):
    one, two = x.exp(), w.sin()
    return (one * two).sum(), one.sum(), two.sum()


def heads(x, w):
    trunk = (x @ w).relu()
    return trunk @ w + x, trunk.exp() + w


PROGRAMS = [scaled_and_added, two_sides, product, results_that_share, three_losses, heads]

# Which results and inputs; no inputs stand for ``backward()``.
RUNS = [(results, inputs) for results in ("first", "last", "all") for inputs in ("x", "w", "xw", "")]


def values_after(compiler, program, runs, make, retain):
    x, w = make(), make()
    function, found = compiler(program), []
    for _ in range(2):
        results = function(x, w)
        results = results if type(results) is tuple else (results,)
        chosen = {"first": results[:1], "last": results[-1:], "all": results}
        for number, (which, names) in enumerate(runs):
            roots = [result.sum() for result in chosen[which]]
            inputs = [{"x": x, "w": w}[name] for name in names]
            try:
                if inputs:
                    found.append(torch.autograd.grad(roots, inputs, retain_graph=retain[number], allow_unused=True))
                else:
                    torch.autograd.backward(roots, retain_graph=retain[number])
                    found += [None if x.grad is None else x.grad.clone(), None if w.grad is None else w.grad.clone()]
            except RuntimeError as error:
                found.append(str(error).split(" (")[0])
        x.grad = w.grad = None
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("kind", ["tensors", "parameters"])
def test_two_backwards_in_any_order(backend, program, kind):
    def make():
        return torch.nn.Parameter(leaf(3, 3).detach()) if kind == "parameters" else leaf(3, 3)

    def scene(compiler):
        compiled = compiler(program)
        pairs = itertools.product(RUNS, RUNS)
        return [values_after(lambda _: compiled, program, runs, make, (False, False)) for runs in pairs]

    agree(scene, backend)


def test_the_first_retains_the_graph_and_the_next_do_not(backend):
    runs = [("all", "x"), ("all", "w"), ("all", "x"), ("all", "w"), ("all", "xw")]

    def scene(compiler):
        return values_after(compiler, two_sides, runs, lambda: leaf(3, 3), (True, False, False, False, False))

    agree(scene, backend)


def test_after_everything_by_an_input_behind_which_nothing_is_saved(backend):
    def scene(compiler):
        x, w = leaf(3), leaf(3)
        result = compiler(scaled_and_added)(x, w).sum()
        result.backward()
        return torch.autograd.grad(result, w), torch.autograd.grad(result, w), raised(result.backward)

    agree(scene, backend)


def test_what_the_other_needs_is_changed_in_between(backend):
    def scene(compiler):
        x, w, factor = leaf(3), leaf(3), torch.ones(3)
        result = compiler(lambda x, w, factor: x.exp() + w * factor)(x, w, factor).sum()
        first = torch.autograd.grad(result, x)
        factor.add_(1)
        return first, raised(lambda: torch.autograd.grad(result, w))[0]

    agree(scene, backend)


def test_what_was_gone_through_is_as_it_was_with_other_sizes(backend):
    def scene(compiler):
        function, found = compiler(scaled_and_added), []
        for size in (3, 4, 5, 6, 4):
            x, w = leaf(size), leaf(size)
            result = function(x, w).sum()
            found += [torch.autograd.grad(result, x), torch.autograd.grad(result, w), torch.autograd.grad(result, w)]
            found.append(raised(lambda result=result, x=x: torch.autograd.grad(result, x))[0])
        return found

    agree(scene, backend)


@pytest.mark.skipif(not SAVED_KNOW_VERSIONS, reason="this PyTorch does not tell which of several was changed")
def test_what_the_other_needs_is_changed_before_both(backend):
    def scene(compiler):
        function, found = compiler(lambda x, w, factor: x.exp().sin() + (w * factor).tanh()), []
        for _ in range(2):
            x, w, factor = leaf(3), leaf(3), torch.ones(3)
            result = function(x, w, factor).sum()
            factor.add_(1)
            found.append(torch.autograd.grad(result, x))
            found.append(raised(lambda result=result, w=w: torch.autograd.grad(result, w))[0])
        return found

    agree(scene, backend)


@pytest.mark.skipif(not SAVED_KNOW_VERSIONS, reason="this PyTorch does not tell which of several was changed")
def test_the_gradient_of_one_where_what_another_needs_is_changed_and_all_share_something(backend):
    def scene(compiler):
        function, found = compiler(lambda x, w, factor: (x.exp() + (w * factor).tanh()).sin()), []
        for _ in range(2):
            x, w, factor = leaf(3), leaf(3), torch.ones(3)
            result = function(x, w, factor).sum()
            factor.add_(1)
            found.append(torch.autograd.grad(result, x))
        return found

    agree(scene, backend)


def test_after_one_that_retains_the_graph_by_what_saves_nothing_in_one_that_is_freed(backend):
    def program(x, w):
        shared = x + w
        return shared.exp().sin().cos(), shared + w

    def scene(compiler):
        function, found = compiler(program), []
        for retain in (True, False, False):
            x, w = leaf(3), leaf(3)
            first, last = function(x, w)
            found.append(torch.autograd.grad(first.sum(), [x, w], retain_graph=retain))
            if not retain:
                found += [torch.autograd.grad(last.sum(), w), torch.autograd.grad(last.sum(), x)]
        return found

    agree(scene, backend)


def shared_by_heads(x, w, shift):
    shared = x.exp()
    return shared * 2 + shift, shared * w.sin()


def test_nothing_is_computed_of_what_is_no_longer_there(backend):
    """The last one is refused, where eager gives it, or right."""
    function = bothways.compile(shared_by_heads, backend=backend)
    for _ in range(3):
        x, w, shift = leaf(3, 3), leaf(3, 3), leaf(3, 3)
        first, last = function(x, w, shift)
        first.sum().backward()
        torch.autograd.grad(first.sum(), shift)
        try:
            gradient, = torch.autograd.grad(last.sum(), w)
        except RuntimeError as error:
            assert "backward through the graph a second time" in str(error)
        else:
            torch.testing.assert_close(gradient, x.detach().exp() * w.detach().cos())


def test_a_graph_that_is_left_in_part_is_freed_with_its_results(backend):
    def program(x, w, v):
        shared = (x * w).tanh()
        return shared.exp(), (shared * v).sigmoid()

    function, waiting = bothways.compile(program, backend=backend), []
    for _ in range(3):
        x, w, v = leaf(3), leaf(3), leaf(3)
        first, last = function(x, w, v)
        torch.autograd.grad(last.sum(), v)
        waiting += [weakref.ref(x), weakref.ref(w)]
        del x, w, v, first, last
    assert [reference() for reference in waiting] == [None] * len(waiting)
