"""Callables that stand in graphs for ``torch.vmap`` and for gradients inside: PyTorch's own run a captured graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx


class Mapped:
    """Runs a graph of one example for all of them."""

    def __init__(self, module: torch.fx.GraphModule, in_dims: tuple[int | None, ...], out_dim: int) -> None:
        self.module, self.in_dims, self.out_dim = module, in_dims, out_dim
        self.__name__ = self.__qualname__ = "vmap"

    def __call__(self, *values: Any) -> Any:
        return torch.vmap(self.module.forward, self.in_dims, self.out_dim)(*values)

    def __repr__(self) -> str:
        return "vmap(...)"


class Differentiated:
    """The gradients of a graph's first result by its first inputs, as many as ``count`` says, then all results."""

    def __init__(self, module: torch.fx.GraphModule, count: int) -> None:
        self.module, self.count = module, count
        self.__name__ = self.__qualname__ = "grad"

    def __call__(self, *values: Any) -> Any:
        def run(*values: Any) -> Any:
            first, *others = self.module.forward(*values)
            return first, tuple(others)

        function = torch.func.grad_and_value(run, tuple(range(self.count)), has_aux=True)
        gradients, (first, others) = function(*values)
        return (*gradients, first, *others)

    def __repr__(self) -> str:
        return "grad(...)"
