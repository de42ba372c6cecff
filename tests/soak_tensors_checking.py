"""Runs a generated program on tensors plainly and compiled, and tells the first thing that differs.

What can be seen of each call: what was raised, the results and what the arguments have become with their strides, what
shares memory with what, gradients, random numbers.
"""

import warnings

import soak_checking
import soak_tensors
import soak_ways
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bothways
from bothways.testing import difference

# The calls: a seed, which of the sizes, whether gradients are on. The second finds the program of the first.
CALLS = ((1, 0, True), (2, 0, True), (3, 1, True), (4, 0, False))


def call(module, function, seed, size, grad):
    """What one call shows."""
    torch.manual_seed(seed)
    given = module.inputs(seed, *module.SIZES[size])
    leaves = [tensor for tensor in given if tensor.is_leaf and tensor.requires_grad]
    versions = [tensor._version for tensor in given]
    error, result = None, ()
    try:
        with torch.set_grad_enabled(grad):
            result = function(*given)
    except Exception as caught:
        error = caught
    seen = [*result, *given]
    return {
        "raised": (error and type(error).__name__, error and str(error).partition("\n")[0]),
        "results": [tensor.detach().clone() for tensor in result],
        "arguments": [tensor.detach().clone() for tensor in given],
        "versions": [tensor._version > version for tensor, version in zip(given, versions, strict=True)],
        "kinds": [(t.dtype, t.shape, t.requires_grad, soak_checking.asked(lambda t=t: t.is_leaf)) for t in seen],
        "places": places(seen),
        "random numbers": torch.rand(1),
        "gradients": None if error else gradients(result, leaves),
    }


def places(tensors):
    """Where each lies: the first over the same memory, where it begins in that, and the strides that tell."""
    bases = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [
        (bases.index(base) if base else None, tensor.storage_offset() if bases.count(base) > 1 else 0, steps(tensor))
        for base, tensor in zip(bases, tensors, strict=True)
    ]


def steps(tensor):
    """The strides along dimensions of several elements."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return [stride for stride, size in pairs if size > 1] if tensor.numel() else []


def gradients(result, leaves):
    """What backwards through each of the results, and through all of them, give; each is weighted in its own way."""
    try:
        weighted = []
        for number, tensor in enumerate(result):
            if tensor.requires_grad and tensor.grad_fn is not None:
                weights = torch.linspace(0.5, 1, tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
                weighted.append((tensor * weights.to(tensor.dtype) if number % 2 else tensor).sum().double())
    except RuntimeError as error:  # such as views that autograd does not let be used any more
        return refused(error)
    if not weighted or not leaves:
        return None
    apart = [gradients_of(one, leaves, retain_graph=True) for one in weighted] if len(weighted) > 1 else []
    return [*apart, gradients_of(sum(weighted), leaves)]


def gradients_of(loss, leaves, **options):
    try:
        return torch.autograd.grad(loss, leaves, allow_unused=True, **options)
    except RuntimeError as error:
        return refused(error)


def refused(error):
    """Eager's error names the first of its nodes that refuses, and one node stands for several here."""
    return "it is forbidden" if "is forbidden" in str(error) else "refused"


def calls(module, function):
    return [call(module, function, *each) for each in CALLS]


def plainly(source):
    """What the calls of a program show when nothing is compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = soak_checking.load(source, "<soak>")
        return calls(module, module.target)


def disagreement(source, way=soak_ways.EAGER, plain=None):
    """The first thing in which the compiled program is not like the plain one; None when there is none."""
    expected = plain or plainly(source)
    module = soak_checking.load(source, "<soak>")
    try:
        with warnings.catch_warnings(), soak_ways.taken(way) as failures:
            warnings.simplefilter("ignore")
            function = bothways.compile(module.target, backend=way.backend)
            got = calls(module, function)
            catches = any(shown["raised"][0] for shown in expected)
            mistake = soak_ways.mistake(function, failures, catches=catches)
    finally:
        bothways.reset()
    if first_difference(expected, got, min(soak_tensors.PRECISIONS.values())) is None:
        return mistake
    return first_difference(expected, got, tolerance_of(source)) or mistake


def first_difference(expected, got, tolerance):
    for number, (before, after) in enumerate(zip(expected, got, strict=True)):
        for part in before:
            different = difference(before[part], after[part], tol=tolerance)
            if different is not None and not is_forbidden(before[part]):
                return f"call {number}, {part}: {different}\nplain    {before[part]}\ncompiled {after[part]}"
    return None


def is_forbidden(shown):
    """Whether eager does not say: it forbids some views to be used."""
    return "is forbidden" in str(shown)


def tolerance_of(source):
    """By the least precise numbers that occur when it runs: not all are written, a quotient of integers has them."""
    module, seen = soak_checking.load(source, "<soak>"), Seen()
    with warnings.catch_warnings(), seen:
        warnings.simplefilter("ignore")
        calls(module, module.target)
    return max(soak_tensors.PRECISIONS.get(str(dtype).removeprefix("torch."), 0) for dtype in seen.dtypes)


class Seen(TorchDispatchMode):
    """Notes what kinds of numbers operations give."""

    def __init__(self):
        super().__init__()
        self.dtypes = {torch.float64}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        self.dtypes.update(leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result
