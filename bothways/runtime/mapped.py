"""Callables that stand in graphs for ``torch.vmap`` and derivatives: PyTorch's own transforms run a captured graph."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from bothways import torch_compat

Tensors = tuple[torch.Tensor, ...]
# A graph as a function of what it is differentiated by: those of its results that are differentiated, then all of them.
Split = Callable[..., tuple[Tensors, Tensors]]


class Mapped:
    """Runs a graph of one example for all of them."""

    def __init__(
        self, module: torch.fx.GraphModule, in_dims: tuple[int | None, ...], out_dims: tuple[int, ...]
    ) -> None:
        self.module, self.in_dims, self.out_dims = module, in_dims, out_dims
        self.__name__ = self.__qualname__ = "vmap"

    def __call__(self, *values: Any) -> Any:
        handled = sys.exception()
        with torch_compat.preserve_dispatch():
            try:
                return torch.vmap(self.module.forward, self.in_dims, self.out_dims)(*values)
            except Exception as error:
                _let_go_of_guards(error, handled)
                raise

    def __repr__(self) -> str:
        return "vmap(...)"


class Differentiated:
    """Derivatives of a graph's first results, ``outputs`` of them, by its first inputs, then all results.

    The inputs come first, then directions where the transform takes them, then whatever else the graph reads.
    """

    def __init__(self, module: torch.fx.GraphModule, transform: str, inputs: int, outputs: int) -> None:
        self.module, self.transform, self.inputs, self.outputs = module, transform, inputs, outputs
        self.__name__ = self.__qualname__ = transform

    def __call__(self, *values: Any) -> Any:
        run, directed = TRANSFORMS[self.transform]
        own, values = values[: self.inputs], values[self.inputs :]
        directions, others = values[: self.inputs * directed], values[self.inputs * directed :]

        def split(*own: torch.Tensor) -> tuple[Tensors, Tensors]:
            results = tuple(self.module.forward(*own, *others))
            return results[: self.outputs], results

        handled = sys.exception()
        with torch_compat.preserve_dispatch():
            try:
                rows, results = run(split, own, directions)
            except Exception as error:
                _let_go_of_guards(error, handled)
                raise
        return (*(one for row in rows for one in row), *results)

    def __repr__(self) -> str:
        return f"{self.transform}(...)"


def _let_go_of_guards(error: BaseException, handled: BaseException | None) -> None:
    """Empty the frames of an error, not of one that was being ``handled`` before.

    Some of PyTorch's hold a guard in a variable, as that which spells a tensor: kept with the error it would go on
    switching transforms off, and when it is dropped put the dispatcher's state back to what it was in an operation.
    """
    seen = {id(handled)}
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            pending += [one.__cause__, one.__context__]


def _gradients(split: Split, own: Tensors, directions: Tensors) -> tuple[Sequence[Tensors], Tensors]:
    def first_of(*own: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
        (first,), results = split(*own)
        return first, results

    gradients, (_, results) = torch.func.grad_and_value(first_of, _all(own), has_aux=True)(*own)
    return [gradients], results


def _by_rows(split: Split, own: Tensors, directions: Tensors) -> tuple[Sequence[Tensors], Tensors]:
    return torch.func.jacrev(split, _all(own), has_aux=True)(*own)


def _by_columns(split: Split, own: Tensors, directions: Tensors) -> tuple[Sequence[Tensors], Tensors]:
    return torch.func.jacfwd(split, _all(own), has_aux=True)(*own)


def _along(split: Split, own: Tensors, directions: Tensors) -> tuple[Sequence[Tensors], Tensors]:
    computed: Any = torch.func.jvp(split, own, directions, has_aux=True)
    _, changes, results = computed
    return [(change,) for change in changes], results


def _all(own: Tensors) -> tuple[int, ...]:
    return tuple(range(len(own)))


# The transforms of torch.func, and whether they take a direction for each input: a row of derivatives for each result.
TRANSFORMS: dict[str, tuple[Callable[..., tuple[Sequence[Tensors], Tensors]], bool]] = {
    "grad": (_gradients, False),
    "jacrev": (_by_rows, False),
    "jacfwd": (_by_columns, False),
    "jvp": (_along, True),
}
