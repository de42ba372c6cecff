"""``torch.func.jacrev``, ``jacfwd``, ``hessian`` and ``jvp`` as Python: which tensors, and what becomes of the results.

The function is captured as a graph of its own, which PyTorch's transform of that name differentiates
(``values/autograd/mapped.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from bothways import torch_compat
from bothways.capture.standins.mapping import derivatives
from bothways.capture.standins.transforms import given_back, places_of, refuse, two_of


def jacrev(
    func: Callable[..., Any], argnums: Any = 0, *, has_aux: bool = False, chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    @functools.wraps(func)
    def wrapped(*args: Any) -> Any:
        return called_by_rows(func, argnums, has_aux, chunk_size, *args)

    return wrapped


def jacfwd(
    func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapped(*args: Any) -> Any:
        return called_by_columns(func, argnums, has_aux, randomness, *args)

    return wrapped


def hessian(func: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    return jacfwd(jacrev(func, argnums), argnums)


def called_by_rows(func: Callable[..., Any], argnums: Any, has_aux: bool, chunk_size: int | None, *args: Any) -> Any:
    """What the function that ``jacrev`` gives does when it is called: PyTorch's own, where ``by_rows`` refuses."""
    return torch.func.jacrev(func, argnums, has_aux=has_aux, chunk_size=chunk_size)(*args)


def called_by_columns(func: Callable[..., Any], argnums: Any, has_aux: bool, randomness: str, *args: Any) -> Any:
    """The same of ``jacfwd``."""
    return torch.func.jacfwd(func, argnums, has_aux, randomness=randomness)(*args)


def by_rows(func: Callable[..., Any], argnums: Any, has_aux: bool, chunk_size: int | None, *args: Any) -> Any:
    if chunk_size is not None:
        refuse()

    def with_gradients(*args: Any) -> Any:
        with torch.enable_grad():
            return func(*args)

    return _jacobian("jacrev", with_gradients, argnums, has_aux, args)


def by_columns(func: Callable[..., Any], argnums: Any, has_aux: bool, randomness: str, *args: Any) -> Any:
    places = (argnums,) if isinstance(argnums, int) else argnums
    if randomness not in ("error", "different", "same") or not isinstance(places, tuple) or min(places, default=-1) < 0:
        refuse()  # of places counted from the end PyTorch's own gives zeros
    return _jacobian("jacfwd", func, argnums, has_aux, args)


def _jacobian(transform: str, func: Callable[..., Any], argnums: Any, has_aux: bool, args: tuple[Any, ...]) -> Any:
    passed = list(args)
    chosen: list[torch.Tensor] = []
    places = places_of(argnums, len(args))
    for place in places:
        passed[place] = _own(args[place], chosen, copied=transform == "jacfwd")
    if any(_is_complex(leaf) for leaf in torch_compat.tree_flatten(args)[0]):
        refuse()
    trees = [passed[place] for place in places]
    _, inputs_spec = torch_compat.tree_flatten(trees[0] if isinstance(argnums, int) else tuple(trees))
    rows, result, aux, spec = _derived(transform, func, has_aux, passed, chosen, [])
    if any(_is_complex(leaf) for leaf in result):
        refuse()
    jacobian = torch_compat.tree_unflatten([torch_compat.tree_unflatten(row, inputs_spec) for row in rows], spec)
    if not has_aux:
        return jacobian
    sources = torch_compat.tree_flatten([args[place] for place in places])[0]
    if transform == "jacrev":
        return jacobian, given_back(aux, chosen, sources)
    others = [leaf for leaf in torch_compat.tree_flatten(args)[0] if isinstance(leaf, torch.Tensor)]
    return jacobian, given_back(aux, [*chosen, *others], [_window(one) for one in (*sources, *others)])


def jvp(
    func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> Any:
    if not isinstance(primals, tuple) or strict:
        refuse()
    chosen: list[torch.Tensor] = []
    passed = _own(primals, chosen, copied=True)
    directions, spec = torch_compat.tree_flatten(tangents)
    if spec != torch_compat.tree_flatten(primals)[1] or not all(isinstance(one, torch.Tensor) for one in directions):
        refuse()
    pairs = zip(chosen, directions, strict=True)
    if any(one.shape != other.shape or one.dtype != other.dtype for one, other in pairs):
        refuse()
    laid_out = [torch.empty_like(one).copy_(other) for one, other in zip(chosen, directions, strict=True)]
    rows, result, aux, spec = _derived("jvp", func, has_aux, list(passed), chosen, laid_out)
    value = torch_compat.tree_unflatten(result, spec)
    change = torch_compat.tree_unflatten([row[0] for row in rows], spec)
    if not has_aux:
        return value, change
    return value, change, given_back(aux, chosen, [_window(one) for one in torch_compat.tree_flatten(primals)[0]])


def _window(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor)


def _own(tree: Any, chosen: list[torch.Tensor], copied: bool) -> Any:
    """A tree of tensors of the transform's own: each is another than whatever else the function reads.

    Forward derivatives lie like what they are of, in memory of the same size: that is the tensor's alone then.
    """
    flat, spec = torch_compat.tree_flatten(tree)
    if not flat or not all(_has_derivatives(leaf) for leaf in flat):
        refuse()
    own = [leaf.clone() if copied else leaf.view_as(leaf) for leaf in flat]
    chosen.extend(own)
    return torch_compat.tree_unflatten(own, spec)


def _derived(
    transform: str, func: Callable[..., Any], has_aux: bool, args: list[Any], chosen: list[torch.Tensor],
    directions: list[torch.Tensor],
) -> tuple[list[list[torch.Tensor]], list[torch.Tensor], Any, Any]:  # fmt: skip
    """A row of derivatives for each result, the results, what is given beside them, and how results are laid out."""
    specs = []

    def flat_of(*args: Any) -> Any:
        output, aux = func(*args), None
        if has_aux:
            output, aux = two_of(output)
        flat, spec = torch_compat.tree_flatten(output)
        if not flat or not all(_has_derivatives(leaf) for leaf in flat):
            refuse()
        specs.append(spec)
        if transform != "jvp":  # which gives the results, and they lie where PyTorch's do
            leaves = torch_compat.tree_flatten(args)[0]
            flat = [_window(leaf) if any(leaf is one for one in leaves) else leaf for leaf in flat]
        return flat, aux

    rows, (result, aux) = derivatives(transform, flat_of, args, chosen, directions)
    return rows, result, aux, specs[0]


def _has_derivatives(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _is_complex(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_complex()


STANDINS: dict[Any, Any] = {
    torch.func.jacrev: jacrev,
    torch.func.jacfwd: jacfwd,
    torch.func.hessian: hessian,
    torch.func.jvp: jvp,
    called_by_rows: by_rows,
    called_by_columns: by_columns,
}
