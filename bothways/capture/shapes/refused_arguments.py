"""Numbers and dtypes that operations refuse, or answer in a way that no rule for shapes tells.

ATen's kernels look at them; rules for shapes do not, and kernels of ours are made for what is allowed. The first kind
is the user's own error, the second a break at the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import ops
from bothways.capture.shapes.fakes import Fake, FakeFailure
from bothways.fake.promotion import COMPLEX_OF

Arguments = Sequence[Any]
Refusal = Callable[[Arguments, dict[str, Any]], Exception | None]


def _unless(place: int | Sequence[int], name: str, is_taken: Callable[[Any], bool]) -> Refusal:
    """Of an argument that is no tensor, at the last of the places that there are. Comparisons with NaN say that it is
    not taken."""
    places = [place] if isinstance(place, int) else place

    def refusal(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
        value = next((args[at] for at in reversed(places) if at < len(args)), kwargs.get(name))
        if value is None or isinstance(value, Fake) or is_taken(value):
            return None
        return ValueError(f"{name} is {value!r}")

    return refusal


def _of_two_dtypes(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    """Losses that give the dtype of their input, at least on a CPU, where shapes have the common one."""
    dtypes = {arg.dtype for arg in (*args, *kwargs.values()) if isinstance(arg, Fake)}
    return NotImplementedError("tensors of two dtypes") if len(dtypes) > 1 else None


def _into(dtype_of: Callable[[torch.dtype], torch.dtype | None]) -> Refusal:
    """What ``out=`` has to be of, by the dtype of the first argument."""

    def refusal(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
        out, first = kwargs.get("out"), args[0] if args else None
        if not isinstance(out, Fake) or not isinstance(first, Fake) or out.dtype is dtype_of(first.dtype):
            return None
        return ValueError(f"out= is of {out.dtype}")

    return refusal


def _is_bound(number: Any) -> bool:
    """Up to the largest of the tensor's dtype: what half precision holds is allowed for certain."""
    return bool(0 <= number <= torch.finfo(torch.float16).max)


def _huber(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    return _unless(3, "delta", lambda delta: delta > 0)(args, kwargs) or _of_two_dtypes(args, kwargs)


def _of_no_tensors(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    first = args[0] if args else next(iter(kwargs.values()), None)
    is_empty = isinstance(first, (list, tuple)) and not first
    return RuntimeError("Tensor list must have at least one tensor.") if is_empty else None


def _of_nothing(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    """One of several elements, where there is none; along a dimension it is one of each row."""
    operand, *others = *args, *kwargs.values()
    if not isinstance(operand, Fake) or any(isinstance(other, Fake) for other in others):
        return None
    sizes, dim = list(operand.shape), next((value for value in others if type(value) is int), None)
    if dim is not None:
        sizes = sizes[dim : dim + 1 or None] if -len(sizes) <= dim < len(sizes) else []
    return IndexError("there are no elements") if any(type(size) is int and size == 0 for size in sizes) else None


def _of_empty_rows(args: Arguments, kwargs: dict[str, Any]) -> Exception | None:
    """Those that give NaN for no elements at all."""
    return _of_nothing(args, kwargs) if len(args) + len(kwargs) > 1 else None


RULES: dict[str, Refusal] = {
    "gelu": _unless(1, "approximate", lambda kind: kind in ("none", "tanh")),
    "softshrink": _unless(1, "lambd", _is_bound),
    "smooth_l1_loss": _unless((3, 5), "beta", lambda beta: beta >= 0),  # ATen's own, and that of ``torch.nn``
    "huber_loss": _huber,
    "soft_margin_loss": _of_two_dtypes,
    "gather": _into(lambda dtype: dtype),
    **dict.fromkeys(("celu", "celu_"), _unless(1, "alpha", lambda alpha: alpha != 0)),
    **dict.fromkeys(("complex", "polar"), _into(COMPLEX_OF.get)),
    **dict.fromkeys(("max", "min"), _of_nothing),
    **dict.fromkeys(("median", "nanmedian"), _of_empty_rows),
    **dict.fromkeys((name for name in dir(torch) if name.startswith("_foreach_")), _of_no_tensors),
}
ops.REFUSALS.update(RULES)


def check_arguments(name: str, args: Arguments, kwargs: dict[str, Any]) -> None:
    """Raise where the operation would, or where nothing but the operation says what it gives."""
    rule = ops.REFUSALS.get(name)
    refusal = None if rule is None else rule(args, kwargs)
    if refusal is not None:
        raise FakeFailure(refusal)
