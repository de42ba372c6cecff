"""Normalizations of halves keep their statistics in eager's dtype, by whatever fake tensors a graph is traced."""

import agreeing
import pytest
import torch
import torch.nn.functional as F
from seeding import seeded

import bothways
from bothways import torch_compat
from bothways.grad.halves.partition import NotRepeatable, check_takes

aten = torch.ops.aten
# By its name: a normalization of x with weight and bias w, and the running statistics r of batch norm.
NORMALIZATIONS = {
    "layer": lambda x, w, r: aten.native_layer_norm(x, [8], w, w, 1e-5),
    "group": lambda x, w, r: aten.native_group_norm(x, w, w, 4, 8, 1, 2, 1e-5),
    "batch": lambda x, w, r: aten.native_batch_norm(x, w, w, r, r, True, 0.1, 1e-5),
    "batch of its own": lambda x, w, r: aten._native_batch_norm_legit(x, w, w, True, 0.1, 1e-5),
}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_fake_tensors_have_the_dtypes_of_kernels(name, half):
    for weight in (None, half, torch.float32):
        for running in (None, weight or torch.float32) if name == "batch" else (None,):
            values = [torch.ones(4, 8, dtype=half), *(d and torch.ones(8, dtype=d) for d in (weight, running))]
            real = NORMALIZATIONS[name](*values)
            mode = torch_compat.fake_tensor_mode()
            with mode:
                fake = NORMALIZATIONS[name](*(value if value is None else mode.from_tensor(value) for value in values))
            assert [one.dtype for one in fake] == [one.dtype for one in real], (weight, running)


def test_the_gradient_of_a_fake_group_norm_has_the_input_s_dtype():
    x, statistics, weight = torch.ones(4, 8, dtype=torch.bfloat16), torch.ones(4, 2), torch.ones(8)
    real = aten.native_group_norm_backward(x, x, statistics, statistics, weight, 4, 8, 1, 2, [True] * 3)
    mode = torch_compat.fake_tensor_mode()
    with mode:
        x, statistics, weight = map(mode.from_tensor, (x, statistics, weight))
        fake = aten.native_group_norm_backward(x, x, statistics, statistics, weight, 4, 8, 1, 2, [True] * 3)
    assert [one.dtype for one in fake] == [one.dtype for one in real]


@pytest.mark.parametrize("backend", agreeing.BACKENDS)
def test_second_derivatives_through_a_group_norm_under_autocast(backend):
    """Its derivatives take no symbolic sizes: the forward is traced by other fake tensors than the backward."""
    torch.manual_seed(0)
    first, last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    parameters = [*first.parameters(), *last.parameters()]
    weight, bias = torch.ones(8), torch.zeros(8)

    def step(x):
        x = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = last(F.group_norm(first(x), 2, weight, bias)).abs().sum()
        gradient, = torch.autograd.grad(loss, x, create_graph=True)
        gradient.square().sum().backward()
        return gradient.detach()

    def observe(function, size):
        for parameter in parameters:
            parameter.grad = None
        result = function(torch.randn(size, 6, generator=seeded(size)))
        return {"gradient": result, "gradients": [parameter.grad for parameter in parameters]}

    agreeing.agree(step, observe, 6, 4, 4, 5, backend=backend, tol=1e-2)


def test_a_backward_does_not_run_on_what_is_saved_in_another_dtype():
    graph = bothways.trace(lambda x: x * 2)(torch.ones(2))
    check_takes(graph, [torch.ones(2)])
    with pytest.raises(NotRepeatable, match="saved as torch.bfloat16"):
        check_takes(graph, [torch.ones(2, dtype=torch.bfloat16)])
