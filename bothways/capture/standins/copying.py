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
# Where a memo of ours has its pairs. One of PyTorch's or the user's is filled by ``id``.
_DONE = "bothways"
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
    if kind in _ATOMIC or kind is tuple or kind is frozenset or isinstance(x, type):
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
    if memo is None:
        return _deep(x, {_DONE: []})
    if len(memo) != 1 or _DONE not in memo:  # one that the caller made, fills or reads
        x.__reduce_ex__(4)
    return _deep(x, memo)


def _deep(x: Any, memo: Any) -> Any:
    """``memo`` holds pairs of what was copied and its copy: an object met twice is copied once."""
    kind = type(x)
    if kind in _ATOMIC or isinstance(x, (type, *_ATOMIC[-2:])):
        return x
    done = memo[_DONE]
    for original, copied_before in done:
        if original is x:
            return copied_before
    if kind is list:
        copied: list[Any] = []
        done.append((x, copied))
        for item in x:
            copied.append(_deep(item, memo))
        return copied
    if kind is tuple:
        items = [_deep(item, memo) for item in x]
        same = all(before is after for before, after in zip(x, items, strict=True))
        result = x if same else tuple(items)
        done.append((x, result))
        return result
    if kind is dict:
        pairs: dict[Any, Any] = {}
        done.append((x, pairs))
        for key, value in x.items():
            pairs[_deep(key, memo)] = _deep(value, memo)
        return pairs
    if hasattr(kind, "__deepcopy__"):
        result = x.__deepcopy__(memo)
        done.append((x, result))
        return result
    if kind is set or kind is frozenset:
        result = kind([_deep(item, memo) for item in x])
        done.append((x, result))
        return result
    fresh = _empty(x, kind)
    done.append((x, fresh))
    fresh.__dict__.update(_deep(x.__dict__, memo))
    return fresh


STANDINS: dict[Any, Any] = {_copy.copy: copy, _copy.deepcopy: deepcopy}
