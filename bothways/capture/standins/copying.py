"""``copy.copy`` and ``copy.deepcopy`` in Python, for containers, constants and ordinary objects.

What has its own idea of being copied through ``__reduce_ex__`` is asked for it, which stops the capture.
"""

from __future__ import annotations

import collections
import copy as _copy
import types
from typing import Any

import torch

_ATOMIC = (
    bool,
    bytes,
    complex,
    float,
    frozenset,
    int,
    range,
    str,
    torch.device,
    torch.dtype,
    torch.memory_format,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    types.BuiltinFunctionType,
    types.FunctionType,
)
_COPIED = (list, dict, set, collections.OrderedDict, collections.defaultdict, collections.deque)
_PICKLING = (
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__reduce__",
    "__reduce_ex__",
)


def copy(x: Any) -> Any:
    kind = type(x)
    if kind in _ATOMIC or kind is tuple or isinstance(x, type):
        return x
    if kind in _COPIED:
        return x.copy()
    if hasattr(kind, "__copy__"):
        return x.__copy__()
    result = _empty(x, kind)
    result.__dict__.update(x.__dict__)
    return result


def _empty(x: Any, kind: type) -> Any:
    """A new object of a class that leaves copying to ``object``: one with a dictionary and nothing else."""
    for name in _PICKLING:
        if getattr(kind, name, None) is not getattr(object, name, None):
            x.__reduce_ex__(4)
    make: Any = kind.__new__
    if make is not object.__new__ or not hasattr(x, "__dict__") or hasattr(kind, "__slots__"):
        x.__reduce_ex__(4)
    return object.__new__(kind)


def deepcopy(x: Any, memo: Any = None, _nil: Any = None) -> Any:
    return _deep(x, memo, [])


def _deep(x: Any, memo: Any, done: list[tuple[Any, Any]]) -> Any:
    """``done`` pairs what was copied with its copy: an object met twice is copied once."""
    kind = type(x)
    if kind in _ATOMIC or isinstance(x, (type, *_ATOMIC[-2:])):
        return x
    for original, copied_before in done:
        if original is x:
            return copied_before
    if kind is list:
        copied: list[Any] = []
        done.append((x, copied))
        for item in x:
            copied.append(_deep(item, memo, done))
        return copied
    if kind is tuple:
        items = [_deep(item, memo, done) for item in x]
        same = all(before is after for before, after in zip(x, items, strict=True))
        result = x if same else tuple(items)
        done.append((x, result))
        return result
    if kind is dict:
        pairs: dict[Any, Any] = {}
        done.append((x, pairs))
        for key, value in x.items():
            pairs[_deep(key, memo, done)] = _deep(value, memo, done)
        return pairs
    if hasattr(kind, "__deepcopy__"):
        return x.__deepcopy__({} if memo is None else memo)
    if kind is set:
        return {_deep(item, memo, done) for item in x}
    fresh = _empty(x, kind)
    done.append((x, fresh))
    fresh.__dict__.update(_deep(x.__dict__, memo, done))
    return fresh


STANDINS: dict[Any, Any] = {_copy.copy: copy, _copy.deepcopy: deepcopy}
