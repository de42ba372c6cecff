"""``torch.func.grad``, ``grad_and_value`` and ``vjp`` as Python: a function is called with leaves, and differentiated.

What a leaf is, and what is left of a history when it leaves the transform, is answered by capture itself
(``values/autograd/transforms.py``), because only the graph knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from bothways import torch_compat
from bothways.capture.standins.mapping import derivatives, is_mapping

CAPTURED = "captured code alone calls this"


def begin() -> int:
    """A transform begins, and has a number."""
    raise AssertionError(CAPTURED)


def again(number: int, outputs: list[torch.Tensor]) -> None:
    """What a transform of that number has computed is differentiated after its end."""
    raise AssertionError(CAPTURED)


def end() -> None:
    """A transform ends."""
    raise AssertionError(CAPTURED)


def inside(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a transform's function is given it: its gradient is asked for."""
    raise AssertionError(CAPTURED)


def gradients(output: torch.Tensor, inputs: list[torch.Tensor], outer: bool) -> list[torch.Tensor | None]:
    """The gradients of inputs, to be differentiated where anything outside needs gradients."""
    raise AssertionError(CAPTURED)


def pulled(
    outputs: list[torch.Tensor], cotangents: list[torch.Tensor], inputs: list[torch.Tensor], outer: bool
) -> list[torch.Tensor | None]:
    """The gradients of inputs for these gradients of outputs."""
    raise AssertionError(CAPTURED)


def outside(tensor: torch.Tensor, outer: bool) -> torch.Tensor:
    """The tensor as it leaves the transform, without the history that it has there."""
    raise AssertionError(CAPTURED)


def refuse() -> NoReturn:
    """PyTorch raises here."""
    raise AssertionError(CAPTURED)


def grad(func: Callable[..., Any], argnums: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    results = grad_and_value(func, argnums, has_aux, args, kwargs)
    return (results[0], results[1][1]) if has_aux else results[0]


def grad_and_value(
    func: Callable[..., Any], argnums: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    if is_mapping():
        return _of_examples(func, argnums, has_aux, args, kwargs)
    outer = torch.is_grad_enabled()
    begin()
    torch.set_grad_enabled(True)
    try:
        args, kwargs = _each(_same, args), _each(_same, kwargs)
        places = places_of(argnums, len(args))
        chosen = [_each(inside, args[place]) for place in places]
        passed = list(args)
        for place, value in zip(places, chosen, strict=True):
            passed[place] = value
        output = func(*passed, **kwargs)
        aux = None
        if has_aux:
            output, aux = two_of(output)
        if not isinstance(output, torch.Tensor) or output.dim() != 0:
            refuse()
        flat, spec = torch_compat.tree_flatten(chosen[0] if isinstance(argnums, int) else tuple(chosen))
        result = torch_compat.tree_unflatten(_complete(flat, gradients(output, flat, outer), outer), spec)
        value = outside(output, outer)
        if has_aux:
            value = value, _each(_out_of, aux, outer)
        return result, value
    finally:
        torch.set_grad_enabled(outer)
        end()


def _of_examples(
    func: Callable[..., Any], argnums: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """The same inside of ``vmap``, where the function is a graph of its own."""
    places = places_of(argnums, len(args))
    passed, chosen = list(args), []
    for place in places:
        flat, spec = torch_compat.tree_flatten(args[place])
        if not all(_has_gradients(leaf) for leaf in flat):
            refuse()
        own = [leaf.view_as(leaf) for leaf in flat]  # each is another than whatever else the function reads
        chosen.append(own)
        passed[place] = torch_compat.tree_unflatten(own, spec)

    def of_one(*args: Any) -> Any:
        output, aux = func(*args, **kwargs), None
        if has_aux:
            output, aux = two_of(output)
        if not isinstance(output, torch.Tensor) or output.dim() != 0:
            refuse()
        return [output], aux

    (computed,), ((output,), aux) = derivatives("grad", of_one, passed, [one for own in chosen for one in own], [])
    trees = [passed[place] for place in places]
    _, spec = torch_compat.tree_flatten(trees[0] if isinstance(argnums, int) else tuple(trees))
    gradients = torch_compat.tree_unflatten(computed, spec)
    if not has_aux:
        return gradients, output
    sources = torch_compat.tree_flatten([args[place] for place in places])[0]
    return gradients, (output, given_back(aux, [one for own in chosen for one in own], sources))


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    outer = torch.is_grad_enabled()
    number = begin()
    torch.set_grad_enabled(True)
    try:
        chosen = _each(inside, primals)
        output = func(*chosen)
        aux = None
        if has_aux:
            output, aux = two_of(output)
        outputs, spec = torch_compat.tree_flatten(output)
        if not outputs or not all(_has_gradients(one) for one in outputs):
            refuse()
        result = torch_compat.tree_unflatten([outside(one, outer) for one in outputs], spec)
        if has_aux:
            aux = _each(_out_of, aux, outer)
    finally:
        torch.set_grad_enabled(outer)
        end()
    inputs, inputs_spec = torch_compat.tree_flatten(chosen)

    def vjp_of(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        outer = torch.is_grad_enabled() if create_graph is None else create_graph
        flat, flat_spec = torch_compat.tree_flatten(cotangents)
        if not retain_graph or flat_spec != spec or not all(isinstance(one, torch.Tensor) for one in flat):
            refuse()
        if any(one.shape != other.shape or one.dtype != other.dtype for one, other in zip(flat, outputs, strict=True)):
            refuse()
        again(number, [*outputs, *inputs])
        try:
            return torch_compat.tree_unflatten(
                _complete(inputs, pulled(outputs, flat, inputs, outer), outer), inputs_spec
            )
        finally:
            end()

    return (result, vjp_of, aux) if has_aux else (result, vjp_of)


def _has_gradients(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and (output.is_floating_point() or output.is_complex())


def two_of(output: Any) -> Any:
    """What a function gave, which is to be a result and something beside it."""
    if not (isinstance(output, tuple) and len(output) == 2):
        refuse()
    return output


def _complete(inputs: list[torch.Tensor], computed: list[torch.Tensor | None], outer: bool) -> list[torch.Tensor]:
    """The gradients as they leave a transform: zeros where no way leads to an input."""
    pairs = zip(inputs, computed, strict=True)
    return [outside(torch.zeros_like(one) if gradient is None else gradient, outer) for one, gradient in pairs]


def _each(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    flat, spec = torch_compat.tree_flatten(tree)
    return torch_compat.tree_unflatten([function(leaf, *others) for leaf in flat], spec)


def _same(leaf: Any) -> Any:
    return leaf


def _out_of(leaf: Any, outer: bool) -> Any:
    if not isinstance(leaf, torch.Tensor):
        refuse()
    return outside(leaf, outer)


def given_back(aux: Any, chosen: list[torch.Tensor], instead: list[torch.Tensor]) -> Any:
    """What a function gives beside its results: for what the transform made its own of, what PyTorch gives."""

    def known(leaf: Any) -> Any:
        for own, other in zip(chosen, instead, strict=True):
            if leaf is own:
                return other
        return leaf

    flat, spec = torch_compat.tree_flatten(aux)
    return torch_compat.tree_unflatten([known(leaf) for leaf in flat], spec)


def places_of(argnums: Any, count: int) -> list[int]:
    """Which arguments the gradients are of."""
    if not isinstance(argnums, (int, tuple)) or argnums == ():
        refuse()
    places = []
    for number in (argnums,) if isinstance(argnums, int) else argnums:
        if not isinstance(number, int) or not -count <= number < count or number % count in places:
            refuse()
        places.append(number % count)
    return places


STANDINS: dict[Any, Any] = {
    torch_compat.GRAD_TRANSFORM: grad,
    torch_compat.GRAD_AND_VALUE_TRANSFORM: grad_and_value,
    torch.func.vjp: vjp,
}
