"""A tensor that was made in inference mode may not be changed outside of it, by kernels neither: eager's error. It may
be read beside tensors that have gradients."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import agree as agree_on
from observing import BACKENDS, agree, raised

import bothways

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.every_backend]


def added(x, w):
    x.add_(1)
    return x * w


def copied(x, w):
    x.copy_(w)
    return x * w


def view_zeroed(x, w):
    x[0].zero_()
    return x * w


def written_as_out(x, w):
    torch.mul(x, w, out=x)
    return x.sum()


@pytest.mark.parametrize("function", [added, copied, view_zeroed, written_as_out])
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_change_outside_of_inference_mode_is_refused_as_in_eager(backend, function, is_warm):
    def scene(compiler):
        with bothways.config.patch(kernels_for_small_graphs=True):
            compiled, seen = compiler(function), []
            if is_warm:
                compiled(torch.ones(8, 9), torch.ones(8, 9))
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with torch.inference_mode():
                    x = torch.ones(8, 9)
                with mode():
                    seen += [raised(compiled, x, torch.full((8, 9), 3.0)), x.sum().item()]
            return seen

    agree(scene, backend)


# Tensors of inference mode beside those that have gradients: they have no version to compare.


class HoldsIt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w
        return x * w

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.w, None


def dropped(x, w):
    return F.dropout(x.exp() + w)


def subtracted(x, w):
    x = x * 2
    return x.sub_(w).sin()


def subtracted_from_the_input(x, w):
    x.sub_(w)
    return x * 2


def held_by_a_custom_function(x, w):
    return HoldsIt.apply(x * 2, w)


def needed_by_the_backward(x, w):
    return x.exp() * w


@pytest.mark.parametrize(
    "function", [dropped, subtracted, subtracted_from_the_input, held_by_a_custom_function, needed_by_the_backward]
)
def test_one_beside_tensors_with_gradients(backend, function):
    def observe(function, twice):
        torch.manual_seed(0)
        with torch.inference_mode():
            w = torch.rand(8, 9)
        leaf = torch.full((8, 9), 0.5, requires_grad=True)
        try:
            result = function(leaf * 1, w)
        except RuntimeError as error:
            return {"raised": str(error)}
        if twice:
            (first,) = torch.autograd.grad(result.sum(), leaf, create_graph=True)
            (result.sum() + first.square().sum()).backward()
        else:
            result.sum().backward()
        return {"result": result.detach(), "gradient": leaf.grad}

    with bothways.config.patch(kernels_for_small_graphs=True):
        may_fail = function is needed_by_the_backward  # autograd lets none of inference mode be saved
        agree_on(function, observe, False, False, True, True, backend=backend, fullgraph=True, may_fail=may_fail)


@pytest.mark.parametrize("is_warm", [False, True])
def test_one_beside_inputs_that_need_gradients_is_read(backend, is_warm):
    def beside(x, w):
        return w.reshape(-1) + x.sum(), x * 2

    def scene(compiler):
        with bothways.config.patch(kernels_for_small_graphs=True):
            compiled = compiler(beside)
            w = torch.ones(8, 9, requires_grad=True)
            if is_warm:
                compiled(torch.ones(8, 9), w)
            with torch.inference_mode():
                x = torch.ones(8, 9)
            results = compiled(x, w)
            results[0].square().sum().backward()
            return [*results, w.grad]

    agree(scene, backend)


def transposed_before(a, b, w):
    a.t_()
    try:
        return a * 2, b * w
    except RuntimeError as error:
        return a * 3, str(error)


def changed_before(a, b, w):
    try:
        a.add_(1).unsqueeze_(0)
        return a * 2, F.linear(b, w)
    except RuntimeError as error:
        return a * 3, str(error)


def changed_and_nothing_waits(a, b, w):
    a.mul_(2)
    return b[1:] * w


def read_and_not_kept(a, b, w):
    a.mul_(2)
    return a + 1, b + w


@pytest.mark.parametrize("function", [transposed_before, changed_before, changed_and_nothing_waits, read_and_not_kept])
def test_one_that_a_backward_would_keep_is_refused_after_what_came_before(backend, function):
    def scene(compiler):
        compiled, seen = compiler(function), []
        for make in (torch.inference_mode, torch.inference_mode, torch.no_grad):
            with make():
                b = torch.ones(4, 4)
            a, w = torch.randn(4, 4), torch.ones(4, requires_grad=True)
            try:
                seen.append(compiled(a, b, w))
            except RuntimeError as error:
                seen.append(str(error))
            seen += [a, a.stride(), a._version]
        return seen

    agree(scene, backend, fullgraph=False)
