"""What the tests of hooks share: a program runs plainly and compiled, with a backward each time, and must agree."""

from functools import partial

import torch
from agreeing import agree as compare

BACKENDS = ["eager", "aot_eager", "native"]


def numbers(size):
    return torch.linspace(0.5, 2, size).requires_grad_()


def agree(program, backend, *, make=lambda size: (numbers(size),), watch=lambda: None, reset=lambda: None, captures=1):
    """Compare what calls return, the gradients their backward gives, and what ``watch`` sees afterwards.

    The second call must find the program of the first; the third has an input of another size.
    """
    observe = partial(run, make=make, watch=watch)
    return compare(
        program, observe, 4, 4, 6, backend=backend, reset=reset, programs=captures + 1, fullgraph=True
    )


def run(function, size, make, watch):
    args = make(size)
    results = function(*args)
    tensors = [value for value in pieces(results) if isinstance(value, torch.Tensor) and value.requires_grad]
    sum(value.sum() for value in tensors).backward()
    return {
        "results": tensors,
        "gradients of the arguments": [value.grad for value in args if isinstance(value, torch.Tensor)],
        "gradients of results that keep them": [value.grad for value in tensors if value.retains_grad],
        "what is watched": repr(watch()),
    }


def pieces(results):
    return results if isinstance(results, (tuple, list)) else [results]
