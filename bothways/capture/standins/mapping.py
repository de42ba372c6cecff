"""``torch.vmap`` as Python: what one example is, and what becomes of the function's arguments.

How the function is captured for one example is the business of ``values/autograd/mapped.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from bothways import torch_compat

CAPTURED = "captured code alone calls this"


def is_mapping() -> bool:
    """Whether a function is captured for one example."""
    raise AssertionError(CAPTURED)


def refuse() -> NoReturn:
    """This is PyTorch's own business."""
    raise AssertionError(CAPTURED)


def mapped(
    func: Callable[..., Any], examples: list[Any], whole: list[Any], ones: list[Any], dims: list[int],
    out_dims: list[int],
) -> list[Any]:  # fmt: skip
    """Call a function with examples, the ``ones`` of ``whole`` tensors along ``dims``, and map it. It gives a list of
    tensors; what it was given comes back as it is, and whatever else it has computed becomes that of all examples, who
    lie along ``out_dims``, which are known when the function was called."""
    raise AssertionError(CAPTURED)


def derivatives(
    transform: str, func: Callable[..., Any], args: list[Any], chosen: list[torch.Tensor],
    directions: list[torch.Tensor],
) -> tuple[list[list[torch.Tensor]], Any]:  # fmt: skip
    """What a transform computes of a function that gives a list of tensors and something beside it: a row for each of
    these tensors, and then what the function gave."""
    raise AssertionError(CAPTURED)


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    if randomness not in ("error", "different", "same") or not (chunk_size is None or chunk_size > 0):
        refuse()

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return torch_compat.VMAP_TRANSFORM(func, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)

    return wrapped


def vmap_call(
    func: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: str, chunk_size: int | None, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    dims = [in_dims] * len(args) if isinstance(in_dims, int) else in_dims
    if chunk_size is not None or randomness != "error":
        refuse()
    if not isinstance(dims, (list, tuple)) or len(dims) != len(args):
        refuse()
    examples, whole, ones, places = [], [], [], []
    for value, dim in zip(args, dims, strict=True):
        flat, spec = torch_compat.tree_flatten(value)
        parts = []
        for leaf in flat:
            if dim is None:
                parts.append(leaf)
                continue
            if not isinstance(dim, int) or not isinstance(leaf, torch.Tensor) or not -leaf.dim() <= dim < leaf.dim():
                refuse()
            one = leaf.select(dim, 0)
            parts.append(one)
            whole.append(leaf)
            ones.append(one)
            places.append(dim % leaf.dim())
        examples.append(torch_compat.tree_unflatten(parts, spec))
    if not whole:
        refuse()
    count = whole[0].shape[places[0]]
    if any(leaf.shape[place] != count for leaf, place in zip(whole, places, strict=True)):
        refuse()

    specs: list[Any] = []
    dims_of_results: list[int] = []

    def of_one(*examples: Any) -> Any:
        flat, spec = torch_compat.tree_flatten(func(*examples, **kwargs))
        specs.append(spec)
        dims_of_results.extend(_dims_of(out_dims, spec, flat))
        return flat

    results = mapped(of_one, examples, whole, ones, places, dims_of_results)
    pairs = zip(results, dims_of_results, strict=True)
    return torch_compat.tree_unflatten([_of_all(one, dim, whole, ones, places) for one, dim in pairs], specs[0])


def _dims_of(out_dims: Any, spec: Any, results: list[Any]) -> list[int]:
    """Where the examples lie in each of the results: one answer for all, or one for each of several."""
    dims = [out_dims] * len(results) if isinstance(out_dims, int) else torch_compat.broadcast_to_tree(out_dims, spec)
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        refuse()
    for place, (result, dim) in enumerate(zip(results, dims, strict=True)):
        if not isinstance(result, torch.Tensor) or not -result.dim() - 1 <= dim <= result.dim():
            refuse()
        if any(result is other and dim != dims[before] for before, other in enumerate(results[:place])):
            refuse()
    return [dim % (result.dim() + 1) for result, dim in zip(results, dims, strict=True)]


def _of_all(result: Any, dim: int, whole: list[Any], ones: list[Any], places: list[int]) -> Any:
    """A result; what the function was given and gives back is the whole of it, with the examples where they belong."""
    for tensor, one, place in zip(whole, ones, places, strict=True):
        if result is one:
            return tensor if place == dim else tensor.movedim(place, dim)
    return result


STANDINS: dict[Any, Any] = {torch.func.vmap: vmap, torch_compat.VMAP_TRANSFORM: vmap_call}
