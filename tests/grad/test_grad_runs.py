"""How often, where and under what a compiled backward may run, and what it then uses up: as in eager."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from observing import BACKENDS, agree, leaf, raised
from torch.autograd.graph import saved_tensors_hooks

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.parametrize("program", [lambda x: (x * 2 + 1).sum(), lambda x: (x + 1).sum()], ids=["saves", "saves not"])
def test_twice_is_an_error_where_eager_saves_anything(backend, program):
    def scene(compiler):
        x = leaf(3)
        loss = compiler(program)(x)
        loss.backward()
        return raised(loss.backward), x.grad

    agree(scene, backend)


def shared_work_that_saves_nothing(x):
    shared = x + 1
    return shared.exp().sum(), shared.cos().sum()


def test_one_loss_after_the_other(backend):
    def scene(compiler):
        x = leaf(3)
        first, second = compiler(shared_work_that_saves_nothing)(x)
        first.backward()
        again = raised(first.backward)
        second.backward()
        return again, raised(second.backward), raised((first + second).backward), x.grad

    agree(scene, backend)


def test_one_loss_after_the_other_with_the_graph_retained(backend):
    def scene(compiler):
        x = leaf(3)
        first, second = compiler(shared_work_that_saves_nothing)(x)
        first.backward(retain_graph=True)
        second.backward(retain_graph=True)
        first.backward()
        second.backward()
        return x.grad, raised(first.backward)

    agree(scene, backend)


def test_what_the_second_loss_needs_is_changed_after_the_first(backend):
    def program(x, mask):
        shared = x + 1
        return (shared * mask).sum(), (shared.cos() * mask).sum()

    def scene(compiler):
        x, mask = leaf(3), torch.ones(3)
        first, second = compiler(program)(x, mask)
        first.backward()
        mask.add_(1)
        return raised(second.backward)[0], x.grad

    agree(scene, backend)


def test_inputs_that_no_derivative_reads_may_change_before_the_second(backend):
    def scene(compiler):
        x, bias = leaf(3), torch.ones(3)
        result = compiler(lambda x, bias: x**3 + bias)(x, bias)
        bias.add_(1)
        (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)

    agree(scene, backend)


def test_a_backward_that_cannot_work_fails_when_it_runs(backend):
    def program(x):
        y = x.exp()
        y.add_(1)
        return y.sum()

    def scene(compiler):
        x = leaf(3)
        loss = compiler(program)(x)
        return raised(loss.backward), x.grad

    agree(scene, backend)


def test_in_inference_mode(backend):
    def scene(compiler):
        x = leaf(3)
        loss = (compiler(lambda x: x.exp() * x)(x)).sum()
        with torch.inference_mode():
            loss.backward()
        return x.grad.is_inference(), x.grad.clone()

    agree(scene, backend)


def test_anomaly_mode_switched_on_for_the_backward(backend):
    def scene(compiler):
        loss = compiler(lambda x: ((x * 0).sqrt() * 0).sum())(leaf(3))
        with pytest.warns(UserWarning), torch.autograd.detect_anomaly():
            kind, text = raised(loss.backward)
        return kind, "returned nan values in its 0th output" in text

    agree(scene, backend)


def test_saved_tensor_hooks_around_see_each_tensor_in_its_turn(backend):
    def scene(compiler):
        function = compiler(lambda x, w: (x @ w).relu().exp().sum())
        seen = []

        def pack(tensor):
            seen.append(("pack", tuple(tensor.shape)))
            return tensor

        def unpack(tensor):
            seen.append(("unpack", tuple(tensor.shape)))
            return tensor

        for _ in range(2):
            x, w = leaf(2, 3), leaf(3, 4)
            with saved_tensors_hooks(pack, unpack):
                loss = function(x, w)
            loss.backward()
            seen += [x.grad, w.grad]
        return seen

    agree(scene, backend)


@pytest.mark.parametrize("needed", [True, False])
def test_forward_mode(backend, needed):
    def scene(compiler):
        function = compiler(lambda x: x.sin() * x)
        x = torch.randn(3, requires_grad=needed)
        before = function(x)
        with forward_ad.dual_level():
            primal, tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones(3))))
        return before, primal, tangent

    agree(scene, backend)


def test_batched_gradients(backend):
    def scene(compiler):
        function, x = compiler(lambda x: x.sin() * x), leaf(3, 2)
        given = torch.randn(4, 2, 3).transpose(1, 2)
        batched = torch.autograd.grad(function(x), x, given, is_grads_batched=True)
        again = torch.autograd.grad(function(x), x, given, is_grads_batched=True, create_graph=True)
        mapped = torch.func.vmap(lambda tangent: torch.autograd.grad(function(x), x, tangent))(given)
        return batched, again, mapped

    agree(scene, backend, fullgraph=False)


@pytest.mark.parametrize("vectorize", [True, False])
def test_jacobians_and_hessians(backend, vectorize):
    def scene(compiler):
        x = torch.randn(3)
        return (
            torch.autograd.functional.jacobian(compiler(lambda x: x.sin() * x), x, vectorize=vectorize),
            torch.autograd.functional.hessian(compiler(lambda x: (x.sin() * x).sum()), x, vectorize=vectorize),
        )

    agree(scene, backend)


def test_gradients_by_the_gradient_that_is_given(backend):
    def scene(compiler):
        function, x = compiler(lambda x: x.sin() * x), leaf(3)
        seen = []
        for needed in (False, True, False, True):
            given = torch.ones(3, requires_grad=needed)
            (first,) = torch.autograd.grad(function(x), x, given, create_graph=True)
            seen += [first, torch.autograd.grad(first.sum(), [x, given] if needed else [x])]
        return seen

    agree(scene, backend)


def test_sparse_gradients(backend):
    def scene(compiler):
        weight = leaf(5, 3)
        table = compiler(lambda weight: weight * 2)(weight)
        torch.nn.functional.embedding(torch.tensor([1, 2]), table, sparse=True).sum().backward()
        return weight.grad.is_sparse, weight.grad.to_dense()

    agree(scene, backend)


def test_gradients_that_are_conjugated_or_negated_later(backend):
    def scene(compiler):
        z, x = torch.randn(3, dtype=torch.complex64).requires_grad_(), leaf(3)
        given = torch.randn(3, dtype=torch.complex64).conj()
        compiler(lambda z: z * 2j)(z).backward(given)
        compiler(lambda x: x * 2)(x).backward(given.imag)
        return z.grad, x.grad

    agree(scene, backend)
