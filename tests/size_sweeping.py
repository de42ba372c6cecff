"""PyTorch's samples of its operations, again and again with other sizes: which operations one program serves.

``variants`` takes a sample and gives calls in which two of its sizes change, consistently: wherever a size occurs,
in every tensor and among the numbers, another one is put, and eager tells which of such calls make sense. ``sweep``
runs them plainly and compiled, compares results and gradients, and says how often the function was captured.
"""

import itertools
import re
import types
import warnings
from dataclasses import dataclass

import torch
from op_samples import first_samples
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import bothways

CALLS = 4
# The first call makes a program for its sizes, the second one for all.
MOST_CAPTURES = 2
MOST_SAMPLES = 12
MOST_ELEMENTS = 50_000


# A program that a size is frozen in: a guard that it is one number. The first program is made for its sizes anyway.
FROZEN = re.compile(r"\.shape\[\d+\] == \d+ \(")


@dataclass(frozen=True)
class Outcome:
    """What became of one operation."""

    kind: str
    captures: int = 0
    detail: str = ""


# What ``Outcome.kind`` can be, and what that means.
KINDS = {
    "dynamic": "one program serves all sizes, after one for the first ones",
    "decided": "sizes decide what is done, as how many parts a split gives: a program for each case",
    "specialises": "a program for each size",
    "breaks": "what the operation gives depends on data, or it runs as plain Python for another reason",
    "fails": "other results than eager's",
    "no variants": "no sample has sizes that can be changed",
}


def enlarged(tensor, shape):
    """A tensor of another shape with the elements of this one, over and over, so that they stay what is allowed."""
    made = tensor.detach()
    for dim, size in enumerate(shape):
        made = made.index_select(dim, torch.arange(size) % tensor.shape[dim])
    return made.clone().requires_grad_(tensor.requires_grad)


def changes(leaves):
    """Ways to change sizes, the ones that change more first: functions of a size, its dimension and the call."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes = sorted({size for tensor in tensors for size in tensor.shape if size > 1})
    ranks = range(max((tensor.dim() for tensor in tensors), default=0))
    by_size = [
        lambda at, size, rank, dim, call, chosen=chosen: (
            size + call * (1 + chosen.index(size)) if size in chosen else size
        )
        for count in (2, 1)
        for chosen in itertools.combinations(sizes, count)
    ]
    by_dim = [
        lambda at, size, rank, dim, call, chosen=chosen: size + call if dim == chosen or dim - rank == chosen else size
        for chosen in (*ranks, *(-1 - dim for dim in ranks))
    ]
    by_place = [
        lambda at, size, rank, dim, call, chosen=(which, number): size + call if (at, dim) == chosen else size
        for which, tensor in enumerate(tensors)
        for number in range(tensor.dim())
    ]
    for numbers_too in (False, True):
        for change in by_size:
            yield numbers_too, change
    for change in (*by_dim, *by_place):
        yield False, change


def changed(tree, numbers_too, change, call):
    """The arguments of one call."""
    leaves, structure = tree_flatten(tree)
    count = itertools.count()

    def put(leaf):
        if isinstance(leaf, torch.Tensor):
            at, rank = next(count), leaf.dim()
            sizes = [change(at, size, rank, dim, call) if size > 1 else size for dim, size in enumerate(leaf.shape)]
            return enlarged(leaf, sizes)
        return change(-1, leaf, -1, -1, call) if numbers_too and type(leaf) is int and leaf > 1 else leaf

    return tree_unflatten([put(leaf) for leaf in leaves], structure)


def variants(operation, samples):
    """The calls of the first sample and change that eager takes; None where there is no such sample."""
    for sample in samples:
        tree = (sample.input, sample.args, sample.kwargs)
        leaves = tree_leaves(tree)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or any(not 0 < tensor.numel() < MOST_ELEMENTS for tensor in tensors):
            continue
        if any(type(tensor) is not torch.Tensor or tensor.layout is not torch.strided for tensor in tensors):
            continue
        for numbers_too, change in changes(leaves):
            calls = [changed(tree, numbers_too, change, call) for call in range(CALLS)]
            if shapes(calls[0]) == shapes(calls[1]):
                continue
            try:
                if any(not same(run(operation, call), run(operation, call)) for call in calls):
                    continue  # eager itself reads what was never written
            except Exception:  # whatever eager says about it
                continue
            return calls
    return None


def same(one, other):
    """Whether results, gradients and arguments are equal, within what rounding may do."""
    try:
        for wanted, got in zip(one, other, strict=True):
            torch.testing.assert_close(widened(got), widened(wanted), equal_nan=True, rtol=1e-3, atol=1e-3)
    except AssertionError:
        return False
    return True


def widened(tensors):
    """Floats of eight bits as longer ones, which can be compared."""
    small = {dtype for dtype in (getattr(torch, name) for name in dir(torch) if name.startswith("float8"))}
    return [tensor.float() if tensor is not None and tensor.dtype in small else tensor for tensor in tensors]


def shapes(tree):
    return [tuple(leaf.shape) for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def tensors_of(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def copied(value):
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def run(function, call, seed=0):
    """Results, and the gradients of the arguments."""
    first, args, kwargs = tree_map(copied, call)
    torch.manual_seed(seed)
    results = tensors_of(function(first, *args, **kwargs))
    moving = [result for result in results if result.requires_grad]
    if moving:
        sums = [result.abs().sum() if result.is_complex() else result.sum() for result in moving]
        torch.autograd.backward(sums)
    gradients = [tensor.grad for tensor in tensors_of((first, args, kwargs))]
    return results, gradients, tensors_of((first, args, kwargs))


def sweep(operation, backend, dtype=torch.float32):
    """What becomes of an operation of OpInfo whose sizes change."""
    device = torch.empty(0).device.type
    differentiable = operation.supports_autograd and dtype in operation.supported_backward_dtypes(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = first_samples(operation, dtype, MOST_SAMPLES, requires_grad=differentiable, device=device)
            calls = variants(operation.op, found)
        except Exception as error:  # of samples that are not made here
            return Outcome("no variants", detail=f"{type(error).__name__}: {error}"[:200])
        if calls is None:
            return Outcome("no variants")
        return outcome(looked_into(operation.op), calls, backend)


def call(function, *args, **kwargs):
    return function(*args, **kwargs)


def looked_into(function):
    """A sample's own Python as that of a user: the compiler does not look into the functions of torch.testing."""
    if not isinstance(function, types.FunctionType) or not function.__module__.startswith("torch.testing"):
        return function
    names = {**function.__globals__, "__name__": "samples", "wrapper_set_seed": call}
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__, made.__module__ = function.__kwdefaults__, "samples"
    return made


def outcome(function, calls, backend):
    def program(first, *args, **kwargs):
        return function(first, *args, **kwargs)

    compiled = bothways.compile(program, backend=backend)
    for number, call in enumerate(calls):
        expected, found = run(function, call), run(compiled, call)
        if not same(expected, found):
            return Outcome("fails", detail=f"call {number}: {shapes(call)}")
        if [one.stride() for one in expected[0]] != [one.stride() for one in found[0]]:
            return Outcome("fails", detail=f"call {number}: strides of {shapes(call)}")
    explanation, captures = bothways.explain(compiled), len(bothways.history(compiled))
    if explanation.breaks or not captures:
        reasons = "; ".join(f"{one.code}: {one.reason}" for one in explanation.breaks)
        return Outcome("breaks", captures, reasons[:300])
    if captures <= MOST_CAPTURES:
        return Outcome("dynamic", captures)
    reasons = [reason for reason in explanation.recompilations[1:] if FROZEN.search(reason)]
    return Outcome("specialises" if reasons else "decided", captures, "; ".join(reasons)[:300])
