"""Grad mode and autocast are as they were when a graph fails in between, also one of operations that never do.

There may be no memory left, and Ctrl-C comes at any time. Autocast keeps what it has cast of weights until the
outermost one is left: one too many that PyTorch counts would have all later calls read weights of long ago.
"""

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways

HUGE = 1 << 50  # elements, more than any memory holds


def depth():
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def seen(function, call):
    try:
        result = function(*call)
    except RuntimeError as error:
        result = type(error).__name__, "memory" in str(error) or "dtype" in str(error)
    return {
        "result": result,
        "grad mode": torch.is_grad_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), depth()),
    }


def without_gradients(x, size):
    with torch.no_grad():
        return (x.expand(size) * 2)[:3]


def under_autocast(x, size):
    with torch.autocast("cpu", torch.bfloat16):
        return (x.expand(size) * 2)[:3]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [without_gradients, under_autocast])
def test_no_memory_is_left(program, backend):
    x = torch.ones(1)
    agree(program, seen, (x, 3), (x, HUGE), (x, HUGE), (x, 3), backend=backend, dynamic=False)


@pytest.mark.parametrize("program", [without_gradients, under_autocast])
def test_ctrl_c_in_the_middle(program):
    def interrupted(graph, inputs):
        class Interrupted(torch.fx.Interpreter):
            def run_node(self, node):
                if node.target in ("expand", torch.Tensor.expand):
                    raise KeyboardInterrupt
                return super().run_node(node)

        return Interrupted(graph).run

    before = seen(lambda: None, ())
    compiled = bothways.compile(program, backend=interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            compiled(torch.ones(1), 3)
        assert seen(lambda: None, ()) == before


def inside_of_another(x, weight):
    with torch.autocast("cpu", torch.bfloat16):
        first = x @ weight
        with torch.autocast("cpu", torch.float16):
            return first, (x * 2) @ weight


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_autocast_that_eager_refuses(backend):
    """The weight was cast to another dtype before, and is kept so."""
    call = torch.ones(2, 2), torch.eye(2).requires_grad_()
    agree(inside_of_another, seen, call, call, backend=backend)
