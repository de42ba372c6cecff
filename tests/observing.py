"""What tests of whole training scenes share: a scene runs plainly and compiled, and everything it shows must agree."""

from functools import partial

import torch
from agreeing import assert_same
from torch.utils._pytree import tree_leaves

import bothways

BACKENDS = ["eager", "aot_eager", "native"]


def agree(scene, backend, *, fullgraph=True):
    """``scene`` takes what compiles its functions, and returns what it has seen."""
    expected = seen_by(scene, lambda function: function)
    got = seen_by(scene, partial(bothways.compile, backend=backend, fullgraph=fullgraph))
    assert_same(expected, got, f"backend {backend}")


def seen_by(scene, compiler):
    torch.manual_seed(0)
    seen = facts(scene(compiler))
    return {"what the scene has seen": seen, "the next random number": torch.rand(1)}


def facts(value):
    """A value with all that autograd tells of its tensors, as of now."""
    if isinstance(value, torch.Tensor):
        # A dimension of one element may have any stride.
        strides = [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]
        autograd = value.requires_grad, value.is_leaf, value.grad_fn is None
        return value.detach().clone(), str(value.dtype), strides, autograd
    if isinstance(value, (list, tuple)):
        return [facts(item) for item in value]
    return value


def with_history(result, leaves):
    """A result, what autograd tells of its tensors, and the gradients of leaves through those that have a history."""
    tensors = tree_leaves(result)
    seen = {"result": result, "history": [(one.requires_grad, one.is_leaf) for one in tensors]}
    needing = [one for one in tensors if one.requires_grad and not one.is_leaf]
    if needing:
        seen["gradients"] = torch.autograd.grad([one.square().sum() for one in needing], leaves, allow_unused=True)
    return seen


def raised(function, *args):
    """The error of a call, by type and text; None when there is none."""
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()
