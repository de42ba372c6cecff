"""Compares plain and compiled functions over calls with changing sizes."""

import torch
from torch.utils._pytree import tree_leaves, tree_map

import bothways

BACKENDS = ("eager", "aot_eager", "native")


def copied(value):
    """The same tensor again, laid out alike, as a leaf."""
    if not isinstance(value, torch.Tensor):
        return value
    if 0 in value.stride():  # cannot be written to, by the program neither
        return value.detach().requires_grad_(value.requires_grad)
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    made.copy_(value.detach())
    return made.requires_grad_(value.requires_grad)


def agree(function, calls, backend, programs=2, **options):
    """Call both with each set of arguments: outputs, gradients and mutations agree. At most so many programs."""
    compiled = bothways.compile(function, backend=backend, fullgraph=True, **options)
    for args in calls:
        agree_once(function, compiled, args)
    compilations = bothways.history(compiled)
    assert len(compilations) <= programs, [compilation.why for compilation in compilations]
    return compiled


def agree_once(function, compiled, args):
    one, other = tree_map(copied, args), tree_map(copied, args)
    expected, found = function(*one), compiled(*other)
    pairs = list(zip(tree_leaves(expected), tree_leaves(found), strict=True))
    for wanted, got in pairs:
        assert type(wanted) is type(got)
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(got, wanted, equal_nan=True)
            assert (got.stride(), got.requires_grad) == (wanted.stride(), wanted.requires_grad)
        else:
            assert wanted == got or wanted != wanted
    moving = [pair for pair in pairs if isinstance(pair[0], torch.Tensor) and pair[0].requires_grad]
    for side in zip(*moving, strict=True):
        torch.autograd.backward(side, [torch.full_like(tensor, 0.5) for tensor in side])
    for wanted, got in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(got.detach(), wanted.detach(), equal_nan=True)
            assert (got.grad is None) == (wanted.grad is None)
            if wanted.grad is not None:
                torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-5, equal_nan=True)


def batches(*shape, sizes=(2, 3, 5, 8, 64), grad=True):
    """One tensor a call: ``shape`` with None where the size changes."""
    return [(torch.randn([size if n is None else n for n in shape], requires_grad=grad),) for size in sizes]


def guards(compiled, number=-1):
    """The guards of one program, as people read them."""
    return [check.text for check in bothways.history(compiled)[number].guards]
