"""Functions that are called at a break: compiled for themselves, and anew when what their calls depend on changes."""

import pytest
import torch

import bothways

BACKENDS = ["eager", "aot_eager", "native"]


def made():
    def helper(x, factor=2.0, *, shift=1.0):
        return x.sin() * factor + shift

    def program(x):
        x = x * 2
        print(end="")
        bothways.graph_break()
        return helper(x) + 1

    return helper, program


def other_code(x, factor=0.0, *, shift=0.0):
    return x.cos() - factor * shift


CHANGES = {
    "__defaults__": (5.0,),
    "__kwdefaults__": {"shift": 7.0},
    "__code__": other_code.__code__,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_about_a_callee_counts_at_the_next_call(name, backend):
    helper, program = made()
    compiled = bothways.compile(program, backend=backend)
    before = getattr(helper, name)
    for value in (before, before, CHANGES[name], CHANGES[name], before):
        setattr(helper, name, value)
        x, y = (torch.linspace(0, 1, 5).requires_grad_() for _ in range(2))
        result, expected = compiled(x), program(y)
        assert torch.allclose(result, expected)
        result.sum().backward()
        expected.sum().backward()
        assert torch.allclose(x.grad, y.grad)
