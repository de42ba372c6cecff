"""What the tests of hooks share: a program runs plainly and compiled, with a backward each time, and must agree."""

import torch

import bothways
from bothways.testing import difference

BACKENDS = ["eager", "aot_eager", "native"]


def numbers(size):
    return torch.linspace(0.5, 2, size).requires_grad_()


def agree(program, backend, *, make=lambda size: (numbers(size),), watch=lambda: None, reset=lambda: None, captures=1):
    """Compare what calls return, the gradients their backward gives, and what ``watch`` sees afterwards.

    The second call must find the program of the first; the third has an input of another size.
    """
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    expected, got = (run(function, make, watch, reset) for function in (program, compiled))
    assert difference(expected[:2], got[:2]) is None, f"plain {expected[:2]}, compiled {got[:2]}"
    assert difference(expected[2:], got[2:]) is None, f"plain {expected[2:]}, compiled {got[2:]}"
    assert len(bothways.history(compiled)) == captures + 1
    return compiled


def run(function, make, watch, reset, sizes=(4, 4, 6)):
    reset()
    seen = []
    for size in sizes:
        args = make(size)
        results = function(*args)
        tensors = [value for value in pieces(results) if isinstance(value, torch.Tensor) and value.requires_grad]
        sum(value.sum() for value in tensors).backward()
        gradients = [value.grad for value in args if isinstance(value, torch.Tensor)]
        retained = [value.grad for value in tensors if value.retains_grad]
        seen.append((tensors, gradients, retained, repr(watch())))
    return seen


def pieces(results):
    return results if isinstance(results, (tuple, list)) else [results]
