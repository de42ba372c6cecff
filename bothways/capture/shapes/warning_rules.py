"""Operations whose kernels warn, where their shapes and dtypes say so: what has no data does not come to a kernel.

A row holds what the stand-ins of its tensors tell. Operations that warn before their kernels are heard when they run
on stand-ins, and need no row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from bothways import ops
from bothways.capture.shapes.fakes import Fake

Rule = Callable[[Sequence[Any], dict[str, Any], Any], bool]


def _first(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The tensor that an operation is about, which may be given by its name."""
    return args[0] if args else kwargs.get("input", kwargs.get("self"))


def _has_no_freedom(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether a variance divides by nothing, or less: by the number of elements less the correction."""
    tensor = _first(args, kwargs)
    first = result[0] if isinstance(result, (tuple, list)) else getattr(result, "items", [result])[0]
    if not isinstance(tensor, Fake) or not isinstance(first, Fake):
        return False
    elements, results = math.prod(tensor.shape), math.prod(first.shape)
    correction = kwargs.get("correction", 1)
    unbiased = kwargs.get("unbiased", next((arg for arg in args[1:] if isinstance(arg, bool)), True))
    correction = 0 if unbiased is False else 1 if correction is None else correction
    return bool(results) and elements // results <= correction


def _drops_imaginary_parts(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> bool:
    source = _first(args, kwargs)
    if not isinstance(source, Fake) or not isinstance(result, Fake):
        return False
    return source.dtype.is_complex and not result.dtype.is_complex


def _always(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> bool:
    return True


RULES: dict[str, Rule] = {
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _has_no_freedom),
    **dict.fromkeys(
        "to type type_as float double half bfloat16 int long short char byte".split(), _drops_imaginary_parts
    ),
    **dict.fromkeys(("cholesky", "triangular_solve"), _always),
}
ops.WARNINGS.update(RULES)


def kernel_warns(target: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether running the operation on data will warn."""
    rule = ops.WARNINGS.get(target if isinstance(target, str) else getattr(target, "__name__", ""))
    return rule is not None and rule(args, kwargs, result)
