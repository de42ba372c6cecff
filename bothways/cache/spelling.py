"""Objects as Python expressions, so that programs and what they were made from can be written down.

What is spelled out means the same in the next process: numbers, small tensors, PyTorch's constants, its operations and
functions and our own. Whatever else, a user's function or operation for one, raises ``NotSpelled``.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import math
import operator
import os
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.fx

from bothways import torch_compat

# Where functions that say little about themselves may be found under their own name.
HOMES: tuple[Any, ...] = (torch, torch.nn.functional, operator, builtins, torch.special, torch.linalg, torch.fft)
HIDDEN_HOMES: dict[str, Any] = {
    name: getattr(torch_compat, name) for name in ("NN_FUNCTIONS", "TENSOR_METHODS", "VARIABLE_FUNCTIONS")
}
# The libraries of operations that no program adds to; what a user registers elsewhere may mean anything.
OPERATIONS = ("aten", "prims")
OWN_FOLDERS = tuple(os.path.dirname(path) + os.sep for path in (torch.__file__, os.path.dirname(__file__)))


MOST_ELEMENTS = 64  # of a tensor that is written down with its data


class NotSpelled(Exception):
    """An object has no expression that means the same in another process."""


def spelled(value: Any) -> str:
    """``value`` as an expression over ``SCOPE``; nodes of a graph are spelled by their names."""
    spell = _SPELLERS.get(type(value))
    if spell is not None:
        return spell(value)
    if isinstance(value, list):  # fx has kinds of lists and dictionaries of its own
        return _listed(value)
    if isinstance(value, dict):
        return _mapped(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if not callable(value):
        raise NotSpelled(repr(type(value)))
    return function_name(value)


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value!r}')"


def _listed(value: list[Any]) -> str:
    return f"[{', '.join(map(spelled, value))}]"


def _tupled(value: tuple[Any, ...]) -> str:
    return f"({''.join(f'{spelled(item)}, ' for item in value)})"


def _mapped(value: dict[Any, Any]) -> str:
    return f"{{{', '.join(f'{spelled(key)}: {spelled(item)}' for key, item in value.items())}}}"


def _tensor(value: torch.Tensor) -> str:
    plain = torch_compat.is_plain_dense(value)
    if plain and type(value) is torch.Tensor and not (value.requires_grad or value.untyped_storage().nbytes()):
        layout = f"{spelled(tuple(value.shape))}, {spelled(value.stride())}, {value.dtype}"
        if value.device.type != "cpu":
            layout += f", {spelled(value.device)}"
        return f"importlib.import_module('bothways.lower.host.wrapper').blank({layout})"
    plain = plain and value.device.type == "cpu" and value.is_contiguous()
    if not plain or not 0 < value.numel() <= MOST_ELEMENTS or value.requires_grad or value.dtype.is_complex:
        raise NotSpelled("a tensor with data of its own")
    return f"torch.tensor({spelled(value.tolist())}, dtype={value.dtype}, device='cpu')"


def _sliced(value: slice) -> str:
    return f"slice({spelled(value.start)}, {spelled(value.stop)}, {spelled(value.step)})"


_SPELLERS: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((type(None), bool, int, str, range, torch.dtype, torch.layout, torch.memory_format), repr),
    float: _number,
    list: _listed,
    tuple: _tupled,
    torch.Size: _tupled,
    dict: _mapped,
    slice: _sliced,
    type(Ellipsis): lambda value: "...",
    torch.device: lambda value: f"torch.{value!r}",
    torch.fx.Node: lambda value: value.name,
}


@functools.cache
def function_name(function: Any) -> str:
    """The full name of a function of PyTorch, of the standard library or of ours, under which it is found again."""
    if isinstance(function, torch_compat.OP_TYPES):
        return _operation_name(function)
    if (overload := torch_compat.overload_of(function)) is not None:
        return f"bothways.torch_compat.function_of_overload({_operation_name(overload)})"
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise NotSpelled(repr(function))
    if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith(OWN_FOLDERS):
        raise NotSpelled(f"{name} may change")
    for home in HOMES:
        if getattr(home, name, None) is function:
            return f"{home.__name__}.{name}"
    for label, home in HIDDEN_HOMES.items():
        if getattr(home, name, None) is function:
            return f"bothways.torch_compat.{label}.{name}"
    module = getattr(function, "__module__", None) or ""
    if module.split(".")[0] in SCOPE and getattr(sys.modules.get(module), name, None) is function:
        # A package may have a function of the module's name.
        return f"importlib.import_module({module!r}).{name}"
    raise NotSpelled(f"{function!r} is not found under its name")


def _operation_name(operation: Any) -> str:
    library, _, name = str(operation).partition(".")
    if library not in OPERATIONS:
        raise NotSpelled(f"{operation} is defined outside of PyTorch")
    return f"torch.ops.{library}.{name}"


# What expressions are evaluated with.
SCOPE: dict[str, Any] = {
    "torch": torch,
    "bothways": sys.modules[__name__.partition(".")[0]],
    "operator": operator,
    "_operator": operator,
    "builtins": builtins,
    "importlib": importlib,
}
