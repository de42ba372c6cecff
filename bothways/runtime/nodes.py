"""Callables that stand in graphs for what is not one tensor operation."""

from __future__ import annotations

import enum
from typing import Any

import torch


class Watched(enum.Enum):
    """What people outside look at, of a tensor that a graph computes (``node.meta["watched"]``).

    A differentiator must let autograd itself see the tensor (GRADIENT: hooks, ``retain_grad``), or run the very
    operation that computes it (NODE: its ``grad_fn`` is looked at or hooked).
    """

    GRADIENT = "gradient"
    NODE = "node"


class Region(enum.Enum):
    """Attribute ``region`` of a callable in a graph: from BEGIN to END the nodes run as they were captured."""

    BEGIN = "begin"
    END = "end"


class ApplyFunction:
    """Calls a custom autograd function; ``opaque`` when its backward must run as the user's own Python.

    ``constants`` are arguments that are no tensors, by position.
    """

    def __init__(self, cls: type[torch.autograd.Function], opaque: bool, constants: dict[int, Any]) -> None:
        self.cls, self.opaque, self.constants = cls, opaque, constants
        self.__name__ = cls.__name__
        self.__qualname__ = f"{cls.__qualname__}.apply"
        self.__module__ = cls.__module__

    def __call__(self, *tensors: Any) -> Any:
        given = list(tensors)
        for index, constant in self.constants.items():
            given.insert(index, constant)
        return self.cls.apply(*given)

    def __repr__(self) -> str:
        return f"{self.cls.__qualname__}.apply"
