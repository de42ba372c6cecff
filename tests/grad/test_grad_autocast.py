"""Autocast around forward, backward, both or parts of them changes what it changes in eager, and nothing else."""

import pytest
import torch
import torch.nn.functional as F
from observing import BACKENDS, agree, leaf

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def bfloat16(enabled=True):
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def matrix():
    return (torch.eye(4) * 2 + torch.randn(4, 4) * 0.1).requires_grad_()


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_the_backward_goes_by_the_state_it_runs_in(backend, forward, backward):
    def scene(compiler):
        function = compiler(torch.linalg.inv)
        seen = []
        for _ in range(2):
            x = matrix()
            with bfloat16(forward):
                result = function(x)
            with bfloat16(backward):
                result.float().pow(2).sum().backward()
            seen += [result, x.grad]
        return seen

    agree(scene, backend)


def test_a_context_inside(backend):
    def program(x):
        with bfloat16():
            return torch.linalg.inv(x)

    def scene(compiler):
        x = matrix()
        result = compiler(program)(x)
        result.pow(2).sum().backward()
        return result, x.grad, torch.is_autocast_enabled("cpu")

    agree(scene, backend)


def test_switched_off_inside(backend):
    def program(x, w):
        low = x @ w
        with bfloat16(False):
            return low, x @ w

    def scene(compiler):
        function = compiler(program)
        seen = []
        for _ in range(2):
            x, w = leaf(3, 4), leaf(4, 5)
            with bfloat16():
                low, high = function(x, w)
            (low.float().sum() + high.sum()).backward()
            seen += [low, high, x.grad, w.grad]
        with torch.no_grad(), bfloat16():
            return seen, function(x, w)

    agree(scene, backend)


def test_a_gradient_of_another_layout_after_the_context(backend):
    def scene(compiler):
        function = compiler(lambda x, w: (x @ w).relu())
        seen = []
        for turned in (False, True, False):
            x, w = leaf(3, 4), leaf(4, 5)
            with bfloat16():
                result = function(x, w)
            given = torch.randn(5, 3).bfloat16()
            result.t().backward(given) if turned else result.backward(given.view(3, 5))
            seen += [result, x.grad, w.grad]
        return seen

    agree(scene, backend)


def test_one_cast_for_two_losses(backend):
    def scene(compiler):
        w = leaf(3, 3)
        function = compiler(lambda a, b: ((a @ w).sum(), (b @ w).sum()))
        with bfloat16():
            first, second = function(torch.randn(5, 3), torch.randn(5, 3))
        first.backward()
        second.backward()
        return w.grad

    agree(scene, backend)


def float16():
    return torch.autocast("cpu", torch.float16)


def first_of_all(x, w):
    with bfloat16():
        with float16():
            low = x @ w
        return low, x @ w


def behind(x, w):
    with bfloat16():
        low = x @ w
        with float16():
            return low, x @ w


def behind_one_that_is_off(x, w):
    with bfloat16():
        low = x @ w
        with bfloat16(False), float16():
            return low, x @ w


@pytest.mark.parametrize("program", [first_of_all, behind, behind_one_that_is_off])
@pytest.mark.parametrize("around", [None, bfloat16, float16])
def test_what_was_cast_to_another_dtype_stays_cast(backend, program, around):
    """Autocast keeps what it casts of leaves until the outermost one is left, whatever the dtype is by then."""

    def scene(compiler):
        function, seen = compiler(program), []
        for _ in range(2):
            x, w = leaf(3, 4), leaf(4, 5)
            with around() if around else bfloat16(False):
                low, other = function(x, w)
            (low.float().sum() + other.float().pow(2).sum()).backward()
            seen += [low, other, x.grad, w.grad]
        return seen

    agree(scene, backend)


@pytest.mark.every_backend
def test_products_of_sequences_of_several_lengths(backend):
    def program(x, weight, bias, y, vector, one, other):
        with bfloat16():
            rows = torch.nn.functional.linear(x, weight, bias)
            return rows * 2, y @ vector, one @ other

    def scene(compiler):
        function, seen = compiler(program), []
        for length in (2, 3, 5):
            inputs = leaf(length, 3, 4), leaf(6, 4), leaf(6), leaf(length, 3, 4), leaf(4), leaf(length), leaf(length)
            results = function(*inputs)
            sum(result.float().sum() for result in results).backward()
            seen += [results, [each.grad for each in inputs]]
        return seen

    agree(scene, backend)


@pytest.mark.parametrize("again", [False, True])
def test_a_backward_behind_one_under_autocast_is_in_full_precision(backend, again):
    def program(x, w):
        return F.linear(x, torch.where(w > 0, w, w.sin()), x[0]) * 0.3

    def scene(compiler):
        function = compiler(program)
        seen = []
        for enabled in (False, True, True, False, True, False):
            x, w = leaf(4, 4), leaf(4, 4)
            result = function(x, w)
            for inside in (enabled, not enabled):
                with bfloat16(inside):
                    seen += torch.autograd.grad(result.sum(), (x, w), retain_graph=True, create_graph=again)
        return [gradient.detach() for gradient in seen]

    agree(scene, backend)
