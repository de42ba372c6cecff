"""A tensor that was made in inference mode may not be changed outside of it, by kernels neither: eager's error."""

import pytest
import torch
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
