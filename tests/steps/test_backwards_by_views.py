"""A view of a leaf that was taken without gradients says that it needs one, and none comes to it."""

import pytest
import torch
from agreeing import BACKENDS, agree

KINDS = {
    "a leaf": lambda leaf: leaf,
    "computed": lambda leaf: leaf * 1,
    "a view": lambda leaf: (leaf * 1).view(-1),
    "a leaf that is a view": lambda leaf: leaf.detach().view(-1).requires_grad_(),
}


@torch.no_grad()
def unseen(leaf):
    return leaf.view_as(leaf)


def asked(x, w):
    return torch.autograd.grad((x * w * x).sum(), x)[0]


def asked_with_another(x, w):
    return torch.autograd.grad((x * w * x).sum(), [w, x], allow_unused=True)


def accumulated(x, w):
    (x * w * x).sum().backward()
    return x.grad


def observe(function, kind):
    leaf, w = (torch.linspace(begin, 2, 4).requires_grad_() for begin in (0.5, 1))
    x = unseen(leaf) if kind == "unseen" else KINDS[kind](leaf)
    if not x.is_leaf:
        x.retain_grad()
    try:
        result = function(x, w)
    except RuntimeError as error:
        return {"raised": str(error).partition(".")[0]}
    return {"result": result, "kept": (leaf.grad, w.grad, x.grad)}


@pytest.mark.filterwarnings("ignore:.*was compiled.*times")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [asked, asked_with_another])
@pytest.mark.parametrize("kind", KINDS)
def test_by_inputs(kind, program, backend):
    agree(program, observe, kind, "unseen", kind, "unseen", backend=backend, within={"kernels_for_small_graphs": True})
    agree(program, observe, "unseen", kind, kind, backend=backend, within={"kernels_for_small_graphs": True})


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_kept(backend):
    settings = {"kernels_for_small_graphs": True}
    agree(accumulated, observe, "a leaf", "unseen", "a leaf", "unseen", backend=backend, within=settings)
    agree(accumulated, observe, "unseen", "a leaf that is a view", "unseen", backend=backend, within=settings)
