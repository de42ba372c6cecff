"""The largest of values that a kernel computes in each of its loops is one of them, in every loop.

Functions of a mathematical library may round otherwise with vectors than without. What was found to be the largest must
still be found among the values, or its gradient is divided by zero.
"""

import pytest
import torch

import bothways
from bothways.testing import difference

FUNCTIONS = {
    "exp": torch.exp,
    "tanh": torch.tanh,
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "of a softmax": lambda x: torch.softmax(x * 2, 0),
    "gelu": torch.nn.functional.gelu,
    "a power": lambda x: (x + 1) ** 1.7,
}
CHOOSING = {
    "max": torch.max,
    "min": torch.min,
    "amax": lambda w: w.amax(0),
    "infinity norm": lambda w: torch.linalg.vector_norm(w, float("inf")),
    "of rows": lambda w: w.view(-1, 2).amax(1).amin(0),
    "smallest and largest": lambda w: sum(torch.aminmax(w)),
}


def has_derivative(choose):
    """PyTorch 2.11 has none of ``aminmax``."""
    try:
        choose(torch.ones(2, 2, requires_grad=True)).sum().backward()
    except RuntimeError:
        return False
    return True


CHOOSING = {name: choose for name, choose in CHOOSING.items() if has_derivative(choose)}


@pytest.mark.parametrize("choose", CHOOSING.values(), ids=CHOOSING)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_gradient_of_the_largest_in_a_step(function, choose):
    def step(x):
        (choose(function(x)) * x).sum().backward()
        return x.grad

    compiled = bothways.compile(step, backend="native", fullgraph=True)
    for size in (4, 1000):
        for seed in range(3):
            torch.manual_seed(seed)
            values = torch.randperm(size) / size + 0.3  # far enough from each other for rounding not to choose
            plain, own = values.clone().requires_grad_(), values.clone().requires_grad_()
            assert difference(step(plain), compiled(own)) is None
