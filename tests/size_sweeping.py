"""PyTorch's samples of its operations, again and again with other sizes: which operations one program serves.

``variants`` takes a sample and gives calls in which two of its sizes change, consistently: wherever a size occurs,
in every tensor and among the numbers, another one is put, and eager tells which of such calls make sense. ``sweep``
runs them plainly and compiled, compares results and gradients, and says how often the function was captured.
"""

import itertools
import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import bothways

CALLS = 4
# The first call makes a program for its sizes, the second one for all; a size that decides what is done takes another.
MOST_CAPTURES = 2
MOST_SAMPLES = 12
MOST_ELEMENTS = 50_000


@dataclass(frozen=True)
class Outcome:
    """What became of one operation: ``kind`` is dynamic, specialises, breaks, fails or has no variants."""

    kind: str
    captures: int = 0
    detail: str = ""


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
        lambda at, size, rank, dim, call, chosen=chosen: size + call * (1 + chosen.index(size)) if size in chosen else size
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
                for call in calls:
                    run(operation, call)
            except Exception:  # whatever eager says about it
                continue
            return calls
    return None


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
    differentiable = operation.supports_autograd and dtype in operation.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = operation.sample_inputs("cpu", dtype, requires_grad=differentiable)
            calls = variants(operation.op, itertools.islice(found, MOST_SAMPLES))
        except Exception as error:  # of samples that are not made here
            return Outcome("no variants", detail=f"{type(error).__name__}: {error}"[:200])
        if calls is None:
            return Outcome("no variants")
        return outcome(operation.op, calls, backend)


def outcome(function, calls, backend):
    def program(first, *args, **kwargs):
        return function(first, *args, **kwargs)

    compiled = bothways.compile(program, backend=backend)
    for number, call in enumerate(calls):
        expected, found = run(function, call), run(compiled, call)
        for wanted, got in zip(expected, found, strict=True):
            try:
                torch.testing.assert_close(got, wanted, equal_nan=True, rtol=1e-3, atol=1e-3)
                assert [one.stride() for one in got if one is not None] == [one.stride() for one in wanted if one is not None] or wanted is expected[1]
            except AssertionError as error:
                return Outcome("fails", detail=f"call {number}: {error}"[:300])
    history = compiled.__bothways__.history
    reasons = "; ".join(f"{one}" for one in history.recompilations)[-400:]
    if history.breaks or not history.captures:
        return Outcome("breaks", history.captures, "; ".join(f"{one.code}: {one.reason}" for one in history.breaks)[:300])
    kind = "dynamic" if history.captures <= MOST_CAPTURES else "specialises"
    return Outcome(kind, history.captures, reasons if kind == "specialises" else "")
