"""Tensors whose elements are not what is in their memory: a program made for plain tensors does not take them.

They have the class, dtype, sizes, strides and device of a plain tensor. A kernel would read memory that means something
else, or memory that is not there.
"""

import pytest
import torch

import bothways
from bothways.testing import same


def plain():
    return torch.arange(1.0, 17.0).reshape(4, 4)


SPECIAL = {
    "negated": lambda: torch._neg_view(plain()),
    "imaginary part of a conjugate": lambda: torch.complex(plain(), plain()).conj().imag,
    "zeros that were never written": lambda: torch._efficientzerotensor((4, 4)),
    "rows of zeros that were never written": lambda: torch._efficientzerotensor((5, 4))[1:],
    "mkldnn": lambda: plain().to_mkldnn(),
    "sparse": lambda: plain().to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([plain()]),
}


@pytest.mark.filterwarnings("ignore:.*prototype stage")
@pytest.mark.parametrize("in_c", [True, False], ids=["table", "python"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", SPECIAL)
def test_a_program_for_plain_tensors_does_not_take_it(name, backend, in_c):
    def program(x):
        return x * x

    with bothways.config.patch(guards_in_c=in_c):
        compiled = bothways.compile(program, backend=backend, dynamic=False)
        for _ in range(2):
            assert same(compiled(plain()), program(plain()))
        for _ in range(2):
            expected, given = program(SPECIAL[name]()), compiled(SPECIAL[name]())
            assert given.layout is expected.layout and given.is_nested == expected.is_nested
            if expected.is_nested:
                expected, given = expected.unbind()[0], given.unbind()[0]
            assert same(given.to_dense(), expected.to_dense())
        assert same(compiled(plain()), program(plain()))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_conjugated_inputs_are_told_apart(backend):
    def program(x):
        y = x.resolve_conj()  # x itself, or a copy
        y.mul_(2)
        return y.imag + 1

    def run(function, make):
        x = make()
        return function(x), x.resolve_conj()

    def numbers():
        return torch.complex(plain(), plain())

    compiled = bothways.compile(program, backend=backend, dynamic=False)
    for make in (numbers, lambda: numbers().conj(), numbers):
        for _ in range(2):
            assert same(run(compiled, make), run(program, make))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_functional_tensors_are_told_apart(backend):
    compiled = bothways.compile(lambda x: x * 2 + 1, backend=backend, dynamic=False)
    for _ in range(2):
        compiled(plain())
    given = compiled(torch._to_functional_tensor(plain()))
    assert torch._is_functional_tensor(given)
    assert same(torch._from_functional_tensor(given), plain() * 2 + 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_batched_gradients_are_told_apart(backend):
    compiled = bothways.compile(lambda x: torch.sin(x) * 2, backend=backend, dynamic=False)
    with torch.no_grad():
        for _ in range(2):
            compiled(torch.ones(4))

    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return compiled(grad)

    x = torch.ones(4, requires_grad=True)
    (grads,) = torch.autograd.grad(Passes.apply(x), x, torch.eye(4), is_grads_batched=True)
    assert same(grads, torch.sin(torch.eye(4)) * 2)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_tangent_of_zeros_that_were_never_written(backend):
    compiled = bothways.compile(lambda x: torch.sin(x) * 2, backend=backend, dynamic=False)
    x = plain().requires_grad_()
    (grad,) = torch.autograd.grad(compiled(x), x, torch._efficientzerotensor((4, 4)))
    assert same(grad, torch.zeros(4, 4))
