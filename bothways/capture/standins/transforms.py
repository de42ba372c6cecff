"""``torch.func.grad`` and ``grad_and_value`` as Python: the function is called with leaves, and differentiated.

What a leaf is, and what is left of a history when it leaves the transform, is answered by capture itself
(``values/autograd/transforms.py``), because only the graph knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from bothways import torch_compat

CAPTURED = "captured code alone calls this"


def begin() -> None:
    """A transform begins."""
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
    outer = torch.is_grad_enabled()
    begin()
    torch.set_grad_enabled(True)
    try:
        args, kwargs = _each(_same, args), _each(_same, kwargs)
        places = _places(argnums, len(args))
        chosen = [_each(inside, args[place]) for place in places]
        passed = list(args)
        for place, value in zip(places, chosen, strict=True):
            passed[place] = value
        output = func(*passed, **kwargs)
        aux = None
        if has_aux:
            if not (isinstance(output, tuple) and len(output) == 2):
                refuse()
            output, aux = output
        if not isinstance(output, torch.Tensor) or output.dim() != 0:
            refuse()
        flat, spec = torch_compat.tree_flatten(chosen[0] if isinstance(argnums, int) else tuple(chosen))
        computed = zip(flat, gradients(output, flat, outer), strict=True)
        complete = [torch.zeros_like(one) if gradient is None else gradient for one, gradient in computed]
        result = torch_compat.tree_unflatten([outside(gradient, outer) for gradient in complete], spec)
        value = outside(output, outer)
        if has_aux:
            value = value, _each(_out_of, aux, outer)
        return result, value
    finally:
        torch.set_grad_enabled(outer)
        end()


def _each(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    flat, spec = torch_compat.tree_flatten(tree)
    return torch_compat.tree_unflatten([function(leaf, *others) for leaf in flat], spec)


def _same(leaf: Any) -> Any:
    return leaf


def _out_of(leaf: Any, outer: bool) -> Any:
    if not isinstance(leaf, torch.Tensor):
        refuse()
    return outside(leaf, outer)


def _places(argnums: Any, count: int) -> list[int]:
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
}
