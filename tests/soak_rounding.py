"""Tells what rounding may make of a generated program's numbers from what it may not.

A sum in another order has another last digit, and a program may make much of it: the sine of a number in the
thousands, a step of full length from a gradient that is zero but for rounding. So a program whose numbers differ runs
plainly a few times more, and the last digit of whatever is rounded goes up or down by chance. What differs by no more
than such runs do among each other says nothing; everything else is a difference.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bothways.testing import difference

RUNS = 5
# A kernel may round a few times where eager rounds once, and not all of it is met by a few runs.
ROOM = 8
# Operations that round; views, copies, choices and comparisons give the digits that they are given.
ROUNDS = frozenset(
    "add sub rsub mul div addcmul addcdiv lerp sum mean var std cumsum cumprod prod mm bmm mv dot addmm baddbmm addmv "
    "linear exp log log1p expm1 sin cos tan tanh sinh cosh atan asin acos sigmoid silu gelu softplus elu sqrt rsqrt "
    "pow reciprocal erf logsumexp".split()
)
ROUND_IN_THEIR_NAMES = ("backward", "norm", "softmax", "loss", "attention", "conv")


class Rounding(TorchDispatchMode):
    """Inside, the last digit of each result that was rounded is another one by chance."""

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__.removeprefix("_foreach_").rstrip("_")
        if name in ROUNDS or any(part in name for part in ROUND_IN_THEIR_NAMES):
            changed = tree_leaves(args[0]) if result is None and args else tree_leaves(result)  # foreach gives nothing
            for tensor in changed:
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    self._move(tensor)
        return result

    def _move(self, tensor):
        if tensor.is_meta:  # PyTorch asks what shape a result will have
            return
        digits = torch.randint(-1, 2, tensor.shape, generator=self.generator)
        moved = tensor * (1 + torch.finfo(tensor.dtype).eps * digits.double()).to(tensor.dtype)
        tensor.copy_(torch.where(tensor == tensor.round(), tensor, moved))  # a whole number may be exact


def rounded(run):
    """What a plain run gives, rounded otherwise, a few times."""
    results = []
    for seed in range(RUNS):
        with Rounding(seed):
            results.append(run())
    return results


def beyond_rounding(expected, got, again, tol=1e-4):
    """Where, and in what, a run first differs from plain runs; None if it does not by more than those do.

    Runs are lists of what every call shows, by its names. ``again`` gives the plain runs that are rounded otherwise,
    once something differs.
    """
    runs = None
    for number, (before, after) in enumerate(zip(expected, got, strict=True)):
        for part in before:
            found = difference(before[part], after[part], tol=tol)
            if found is None:
                continue
            runs = list(again()) if runs is None else runs
            others = [before[part], *(run[number][part] for run in runs)]
            if not any(_explains(base, after[part], others, tol) for base in others):
                return number, part, found
    return None


def _explains(base, value, others, tol):
    """Whether a value is what plain runs give that went the way of one of them."""
    wanted, found = _leaves(base), _leaves(value)
    if wanted.keys() != found.keys():
        return False
    like = [leaves for leaves in map(_leaves, others) if leaves.keys() == wanted.keys()]
    return all(_is_near(wanted[path], found[path], [leaves[path] for leaves in like], tol) for path in wanted)


def _leaves(value, path=()):
    """What a nested value has in it, by the ways to it."""
    if isinstance(value, dict):
        value = list(value.items())
    if not isinstance(value, (list, tuple)):
        return {path: value}
    found = {(*path, len(value)): type(value)}
    for index, item in enumerate(value):
        found |= _leaves(item, (*path, index))
    return found


def _is_near(base, value, others, tol):
    if difference(base, value, tol=tol) is None or any(difference(other, value, tol=tol) is None for other in others):
        return True
    every = [base, value, *others]
    tensors = [one if isinstance(one, torch.Tensor) else torch.tensor(one) for one in every if _is_real(one)]
    if len(tensors) < len(every) or len({(one.shape, one.dtype) for one in tensors}) > 1:
        return False
    first, second, *rest = (one.detach().double() for one in tensors)
    return _apart(first, second) <= ROOM * max(_apart(first, other) for other in rest)


def _is_real(value):
    return isinstance(value, float) or (isinstance(value, torch.Tensor) and value.is_floating_point())


def _apart(one, other):
    """How far numbers are from each other; infinitely where only one is none."""
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, (one - other).abs().nan_to_num(torch.inf)).max().item() if one.numel() else 0.0
