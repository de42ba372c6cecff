"""Callables that stand in graphs for what is not one tensor operation."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

from bothways import torch_compat
from bothways.node_facts import CallFacts, in_graphs
from bothways.runtime.acts import act
from bothways.symbols.environment import COMPARISONS


@dataclass(frozen=True)
class FromGraph:
    """An argument that the graph hands over: its position among the node's."""

    index: int


@dataclass(frozen=True)
class Fixed:
    """An argument that belongs to the node itself: a constant that a graph's code could not spell out."""

    value: Any


@dataclass(frozen=True)
class BuiltContainer:
    """A container that is made for the call, from its parts."""

    make: Callable[[list[Any]], Any]
    parts: tuple[Argument, ...]


Argument = FromGraph | Fixed | BuiltContainer


def filled(argument: Argument, values: tuple[Any, ...]) -> Any:
    """The argument itself, given what the graph hands over."""
    match argument:
        case FromGraph(index):
            return values[index]
        case Fixed(value):
            return value
        case BuiltContainer(make, parts):
            return make([filled(part, values) for part in parts])


@dataclass(frozen=True)
class Reads:
    """Whether what the two bodies of a custom function read from outside is as it was when they were looked at."""

    forward: Callable[[], bool] | None = None
    backward: Callable[[], bool] | None = None


@in_graphs(opaque=True, has_effects=True)
def set_data_(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """``tensor.data = data``; gives the tensor, which has the other's sizes from now on."""
    act()
    tensor.data = data
    return tensor


class ApplyFunction:
    """Calls a custom autograd function.

    It is ``opaque`` when its backward must run as the user's own Python, ``stateful`` when its forward must too, and
    ``has_effects`` when a second run of the forward could be told from the first.
    """

    def __init__(
        self,
        cls: type[torch.autograd.Function],
        arguments: tuple[Argument, ...],
        *,
        opaque: bool = False,
        stateful: bool = False,
        has_effects: bool = False,
        reads: Reads | None = None,
    ) -> None:
        self.cls, self.arguments = cls, arguments
        self.reads = reads or Reads()
        self.stateful = stateful
        self.__bothways_call__ = CallFacts(opaque=opaque, has_effects=has_effects)
        self.__name__ = cls.__name__
        self.__qualname__ = f"{cls.__qualname__}.apply"
        self.__module__ = cls.__module__
        self._as_given = arguments == tuple(map(FromGraph, range(len(arguments))))

    @property
    def opaque(self) -> bool:
        return self.__bothways_call__.opaque

    def __call__(self, *values: Any) -> Any:
        if self.stateful:
            refuse_stand_ins(self)
        if self.__bothways_call__.has_effects:
            act()
        if self._as_given:
            return torch_compat.APPLY_FUNCTION(self.cls, *values)
        return torch_compat.APPLY_FUNCTION(self.cls, *(filled(argument, values) for argument in self.arguments))

    def __repr__(self) -> str:
        return f"{self.cls.__qualname__}.apply"


@in_graphs(opaque=True)
class LooksAtData:
    """Calls a function of PyTorch's that decides by its arguments' data; nothing but autograd can follow it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__ = function.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{self.__module__}.{self.__name__}"


class Checkpointed:
    """Runs a graph whose intermediates are computed again for the backward instead of being kept.

    Its first inputs, as many as ``arguments`` says, are what the user's function is called with: those must be
    unchanged when it runs again. The others it reads as they are then, and ``changes`` some of them in place or none.
    """

    def __init__(
        self, module: torch.fx.GraphModule, options: dict[str, Any], arguments: int, changes: bool
    ) -> None:
        self.module, self.options, self.arguments, self.changes = module, options, arguments, changes
        self.__bothways_call__ = CallFacts(opaque=True, has_effects=changes)
        self.__name__ = self.__qualname__ = "checkpoint"

    def __call__(self, *values: Any) -> Any:
        others = values[self.arguments :]
        if self.changes:
            act()

        def run(*arguments: Any) -> Any:
            return self.module.forward(*arguments, *others)

        return checkpoint(run, *values[: self.arguments], use_reentrant=False, **self.options)

    def __repr__(self) -> str:
        return "checkpoint(...)"


@in_graphs(opaque=True)
class Choice:
    """Runs one of two graphs, by the value of a tensor."""

    def __init__(self, if_true: torch.fx.GraphModule, if_false: torch.fx.GraphModule) -> None:
        self.if_true, self.if_false = if_true, if_false
        self.__name__ = self.__qualname__ = "cond"

    def __call__(self, condition: torch.Tensor, *values: Any) -> Any:
        return self.if_true.forward(*values) if condition else self.if_false.forward(*values)

    def __repr__(self) -> str:
        return "cond(...)"


@in_graphs(opaque=True, has_effects=True)
class SetsState:
    """Changes a setting of PyTorch's while the graph runs; what comes after it is compiled for itself."""

    def __init__(self, setter: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        self.setter, self.args, self.kwargs = setter, args, kwargs
        self.__name__ = self.__qualname__ = setter.__name__

    def __call__(self) -> None:
        refuse_stand_ins(self)
        act()
        self.setter(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        return f"{self.__name__}({', '.join(map(repr, self.args))})"


@in_graphs(opaque=True, has_effects=True)
class LaunchKernel:
    """Launches a Triton kernel; it writes into tensors it is given, behind autograd's back."""

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Argument, ...], keywords: dict[str, Argument]
    ) -> None:
        self.kernel, self.grid, self.arguments, self.keywords = kernel, grid, arguments, keywords
        self.__name__ = self.__qualname__ = kernel.__name__
        self.__module__ = kernel.__module__

    def __call__(self, *values: Any) -> None:
        refuse_stand_ins(self)
        act()
        positional = [filled(argument, values) for argument in self.arguments]
        self.kernel[self.grid](*positional, **{name: filled(arg, values) for name, arg in self.keywords.items()})

    def __repr__(self) -> str:
        return f"{self.__name__}[{self.grid}]"


class DataDiffers(Exception):
    """Data is not what a graph was captured for."""


# What a check says that is an operation of a traced graph, which cannot raise that.
DIFFERS = "data is not what the graph was captured for"


def is_of_data(failure: Exception) -> bool:
    """Whether a graph has failed because its data differs."""
    return isinstance(failure, DataDiffers) or DIFFERS in str(failure)


@in_graphs(opaque=True)
def require_true(condition: torch.Tensor) -> None:
    """Fail unless all elements are true."""
    if not condition.all():
        raise DataDiffers


@in_graphs(opaque=True)
def require_holds(left: Any, symbol: str, right: Any) -> None:
    """Fail unless a comparison of numbers is true."""
    if not COMPARISONS[symbol](left, right):
        raise DataDiffers


# What is asked of a number that was read from a tensor, alone or with another number.
QUESTIONS: dict[str, Callable[..., bool]] = {
    **COMPARISONS,
    "isfinite": math.isfinite,
    "isnan": math.isnan,
    "isinf": math.isinf,
}


# What is applied to such a number first: an operation, the other number, and whether that is the left one.
Applied = tuple[str, float, bool]
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


@in_graphs(opaque=True)
def require_number(
    tensor: torch.Tensor, applied: tuple[Applied, ...], question: str, others: tuple[float, ...], wanted: bool
) -> None:
    """Fail unless the answer to a question about the number that a tensor holds, or what comes of it by what is
    ``applied``, is the ``wanted`` one."""
    number = tensor.item()
    for symbol, other, is_left in applied:
        number = ARITHMETIC[symbol](other, number) if is_left else ARITHMETIC[symbol](number, other)
    if QUESTIONS[question](number, *others) is not wanted:
        raise DataDiffers


# Nodes that fail where data is not as a capture has assumed.
CHECKS = frozenset({require_true, require_holds, require_number})


def refuse_stand_ins(what: object) -> None:
    """Raise under a tracer: what reads or changes the world may only run where the program does."""
    if torch_compat.dispatch_mode_depth():
        raise RuntimeError(f"{what!r} runs as Python and cannot be traced")


class Pinned:
    """A function of PyTorch's as captured code had it, for graphs whose text would find another under its name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = function.__name__
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
