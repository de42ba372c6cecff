"""Comparison of results: two nested structures in, the first difference out, or None.

Tensors are compared by dtype, shape, device and, within a tolerance, value; containers and objects part by
part. Nothing is modified, and structures that contain themselves are compared once.
"""

from __future__ import annotations

import functools
import math
import types
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Parts = dict[str, Any]  # what a structure is made of, by the text that names each part in a message


@dataclass(frozen=True)
class Tolerance:
    """How close is close enough."""

    tol: float = 1e-4
    """Relative and absolute tolerance of floating-point and complex values; others must be equal."""
    equal_nan: bool = True
    """NaN in the same place on both sides counts as equal."""
    exact_dtype: bool = True
    """dtypes, and the types of Python numbers, must be the same."""
    cos_similarity: bool = False
    """Compare floating-point tensors by direction (cosine at least 0.99) instead of by element."""
    relax_numpy_equality: bool = False
    """A NumPy value may be compared with a tensor or a number."""
    ignore_non_fp: bool = False
    """Do not look at the values of tensors that are not floating-point."""


def same(
    a: Any,
    b: Any,
    fp64_ref: Any = None,
    cos_similarity: bool = False,
    tol: float = 1e-4,
    equal_nan: bool = True,
    exact_dtype: bool = True,
    relax_numpy_equality: bool = False,
    ignore_non_fp: bool = False,
    log_error: Callable[[str], object] | None = None,
) -> bool:
    """Whether two results are the same: nested containers, objects, numbers and tensors, within ``tol``.

    - ``a``, ``b``: the results.
    - ``fp64_ref``: the same result computed in double precision: a tensor that is not close to ``a`` still passes when
      its error against the reference is of the size of ``a``'s own.
    - ``cos_similarity``, ``tol``, ``equal_nan``, ``exact_dtype``, ``relax_numpy_equality``, ``ignore_non_fp``: the
      fields of ``Tolerance``.
    - ``log_error``: called with the first difference.

    >>> bothways.testing.same({"loss": torch.ones(2)}, {"loss": torch.ones(2) + 1e-6})
    True
    """
    tolerance = Tolerance(tol, equal_nan, exact_dtype, cos_similarity, relax_numpy_equality, ignore_non_fp)
    differs = _differ(a, b, fp64_ref, "result", tolerance, set())
    if differs is not None and log_error is not None:
        log_error(differs)
    return differs is None


def difference(a: Any, b: Any, fp64_ref: Any = None, **options: Any) -> str | None:
    """Where two results first differ and how, or None.

    - ``a``, ``b``: the results.
    - ``fp64_ref``: as for ``same``.
    - ``options``: the fields of ``Tolerance``.

    >>> bothways.testing.difference([1, 2], [1, 3])
    'result[1]: 2 and 3'
    """
    return _differ(a, b, fp64_ref, "result", Tolerance(**options), set())


def _differ(a: Any, b: Any, ref: Any, path: str, tolerance: Tolerance, seen: set[tuple[int, int]]) -> str | None:
    for applies, leaf in LEAVES:
        if applies(a) or applies(b):
            differs = leaf(a, b, ref, tolerance)
            return differs and f"{path}: {differs}"
    if a is b or (id(a), id(b)) in seen:
        return None
    seen.add((id(a), id(b)))
    for applies, parts in CONTAINERS:
        if applies(a) and applies(b):
            return _differ_in_parts(parts(a), parts(b), parts(ref) if applies(ref) else {}, path, tolerance, seen)
    if type(a) is not type(b):
        return f"{path}: {_kind(a)} and {_kind(b)}"
    state, other = _state(a), _state(b)
    if state is None or other is None:
        return None if _equal(a, b) else f"{path}: {_short(a)} and {_short(b)}"
    return _differ_in_parts(state, other, _state(ref) or {}, path, tolerance, seen)


def _differ_in_parts(
    a: Parts, b: Parts, ref: Parts, path: str, tolerance: Tolerance, seen: set[tuple[int, int]]
) -> str | None:
    if a.keys() != b.keys():
        only = [f"{name} only on the left" for name in a if name not in b]
        only += [f"{name} only on the right" for name in b if name not in a]
        return f"{path}: {', '.join(only[:3])}"
    for name, part in a.items():
        differs = _differ(part, b[name], ref.get(name), path + name, tolerance, seen)
        if differs is not None:
            return differs
    return None


# Leaves ----------------------------------------------------------------------------------------------------


def _differ_in_tensor(a: Any, b: Any, ref: Any, tolerance: Tolerance) -> str | None:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return f"{_kind(a)} and {_kind(b)}"
    for name in ("shape", "device", "dtype", "layout"):
        left, right = getattr(a, name), getattr(b, name)
        if left != right and (name != "dtype" or tolerance.exact_dtype):
            return f"{name} {_short(left)} and {_short(right)}"
    if a.is_meta:
        return None
    with torch.no_grad():
        return _differ_in_values(_dense(a), _dense(b), ref, tolerance)


def _differ_in_values(a: Tensor, b: Tensor, ref: Any, tolerance: Tolerance) -> str | None:
    common = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(common), b.to(common)
    if not (common.is_floating_point or common.is_complex):
        return None if tolerance.ignore_non_fp or torch.equal(a, b) else _largest_difference(a, b)
    if tolerance.cos_similarity:
        cosine = torch.nn.functional.cosine_similarity(
            a.flatten().to(torch.float64), b.flatten().to(torch.float64), dim=0, eps=1e-6
        ).item()
        both_zero = not a.any() and not b.any()
        return None if cosine >= 0.99 or both_zero or torch.equal(a, b) else f"cosine similarity {cosine:.4f}"
    if torch.allclose(a, b, rtol=tolerance.tol, atol=tolerance.tol, equal_nan=tolerance.equal_nan):
        return None
    if isinstance(ref, Tensor) and _error(b, ref) <= 2 * _error(a, ref) + tolerance.tol / 10:
        return None
    return _largest_difference(a, b, tolerance.equal_nan)


def _differ_in_numpy(a: Any, b: Any, ref: Any, tolerance: Tolerance) -> str | None:
    if not (_is_numpy(a) and _is_numpy(b)) and not tolerance.relax_numpy_equality:
        return f"{_kind(a)} and {_kind(b)}"
    try:
        return _differ_in_tensor(torch.as_tensor(a), torch.as_tensor(b), None, tolerance)
    except TypeError:  # strings and objects, which no tensor holds
        equal = getattr(a, "shape", None) == getattr(b, "shape", None) and bool((a == b).all())
        return None if equal else f"{_short(a)} and {_short(b)}"


def _differ_in_number(a: Any, b: Any, ref: Any, tolerance: Tolerance) -> str | None:
    if not (_is_number(a) and _is_number(b)) or (tolerance.exact_dtype and type(a) is not type(b)):
        return f"{_kind(a)} and {_kind(b)}"
    if a == b:
        return None
    if isinstance(a, (int, bool)) and isinstance(b, (int, bool)):
        return f"{a!r} and {b!r}"
    parts = [(complex(a).real, complex(b).real), (complex(a).imag, complex(b).imag)]
    close = all(
        math.isclose(left, right, rel_tol=tolerance.tol, abs_tol=tolerance.tol)
        or (tolerance.equal_nan and math.isnan(left) and math.isnan(right))
        for left, right in parts
    )
    return None if close else f"{a!r} and {b!r}"


def _is_numpy(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def _is_number(value: Any) -> bool:
    return type(value) in (bool, int, float, complex)


# Checked in order, on either side: what is a leaf, and how two of its kind are compared.
LEAVES: list[tuple[Callable[[Any], bool], Callable[[Any, Any, Any, Tolerance], str | None]]] = [
    (_is_numpy, _differ_in_numpy),
    (lambda value: isinstance(value, Tensor), _differ_in_tensor),
    (_is_number, _differ_in_number),
]


# Containers and objects ------------------------------------------------------------------------------------


def _items(value: Any) -> Parts:
    return {f"[{index}]": part for index, part in enumerate(value)}


def _entries(value: Any) -> Parts:
    return {f"[{key!r}]": part for key, part in value.items()}


# Both sides must be of one row: a list may be compared with a tuple, a dict with an OrderedDict.
CONTAINERS: list[tuple[Callable[[Any], bool], Callable[[Any], Parts]]] = [
    (lambda value: isinstance(value, (list, tuple, deque)), _items),
    (lambda value: isinstance(value, Mapping), _entries),
]

# Objects that are what they are: their attributes are not a value to compare.
OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.CodeType, property)


# Classes written in C whose state is not in their __dict__.
HIDDEN_STATE: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    BaseException: ("args",),
}


def _state(value: Any) -> Parts | None:
    """The attributes of a user's object by name, or None when it has none to compare."""
    kinds = type(value).__mro__
    names = [name for kind in kinds for name in (*_slots(kind), *HIDDEN_STATE.get(kind, ()))]
    if isinstance(value, OPAQUE) or not (names or hasattr(value, "__dict__")):
        return None
    state = {f".{name}": getattr(value, name) for name in names if hasattr(value, name)}
    return state | {f".{name}": part for name, part in getattr(value, "__dict__", {}).items()}


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__") and not name.startswith("__")]


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # an __eq__ that cannot decide has not said that they are the same
        return False


# Words for messages ----------------------------------------------------------------------------------------


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {_short(value)}"


def _short(value: Any) -> str:
    text = repr(tuple(value) if isinstance(value, torch.Size) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _dense(value: Tensor) -> Tensor:
    value = value.detach()
    return value if value.layout is torch.strided else value.to_dense()


def _error(value: Tensor, ref: Tensor) -> float:
    """Root mean square error against the double-precision reference."""
    return (value.to(ref.dtype) - ref.detach()).abs().pow(2).mean().sqrt().item()


def _largest_difference(a: Tensor, b: Tensor, equal_nan: bool = True) -> str:
    wide = torch.complex128 if a.is_complex() else torch.float64
    left, right = a.to(wide).flatten(), b.to(wide).flatten()
    apart = (left - right).abs().nan_to_num(nan=math.inf)
    agree = left == right  # equal infinities, whose difference is NaN, among them
    apart[agree | (left.isnan() & right.isnan()) if equal_nan else agree] = 0
    at = int(apart.argmax())
    count = int((apart > 0).sum())
    return (
        f"values differ in {count} of {apart.numel()} elements, most at element {at}: "
        f"{a.flatten()[at].item()} and {b.flatten()[at].item()}"
    )
