"""Operations that ATen's kernels refuse for the dtypes they meet, where PyTorch's rules for shapes let them through.

Nothing tells beforehand which dtypes a kernel is written for. So an operation that meets others than the usual ones is
tried, on few elements, once a process. One that is refused is a break: it raises where it stands, read or not.
"""

from __future__ import annotations

import functools
import math
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from bothways import ops, torch_compat
from bothways.capture.shapes.fakes import Fake, FakeFailure
from bothways.symbols import hint
from bothways.torch_compat.said import said

USUAL = (torch.float32, torch.float64)  # which kernels of operations on numbers take
SMALL = 1024  # elements of all arguments with which an operation is tried as it is
MOST = 4  # else, elements along a dimension
LARGEST = 1 << 12  # of sizes among the arguments
# What a kernel says where it is not written for a dtype; other errors are of the few elements.
REFUSAL = re.compile(
    r"not (implemented|supported) (for|on)|does not support|cannot be converted|dtype|scalar ?type|"
    r"complex|bool|integ|float"
)
OWNERS = ("torch", "_operator")
KEPT = (type(None), bool, int, float, complex, str, torch.dtype, torch.memory_format)


class Few(NamedTuple):
    """A tensor to try an operation with."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        fill = torch.ones if self.dtype.is_floating_point or self.dtype.is_complex else torch.zeros
        return fill(self.shape, dtype=self.dtype, device="cpu")


class Many(NamedTuple):
    """A list or tuple of arguments."""

    kind: type
    items: tuple[Any, ...]


class _Untried(Exception):
    """An argument that no trial can be made with."""


def check_kernel(kind: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise where ATen's kernel for a CPU would, for the dtypes of the arguments."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    operation = ops.named(name)
    if not _is_unusual(operation, args, kwargs) or torch_compat.is_any_autocast_enabled():
        return
    only_moves = operation.is_view or (operation.moves and not operation.takes_numbers)
    if only_moves and not isinstance(target, types.FunctionType):  # one of those may have a view's name
        return
    if kind != "call_method" and not _is_of_torch(target):
        return
    if not _is_on_cpu(args, kwargs):
        return
    try:
        most = MOST if sum(map(_elements, (*args, *kwargs.values()))) > SMALL else SMALL
        few = functools.partial(_few, most=most, largest=sys.maxsize if operation.takes_numbers else LARGEST)
        draws = operation.draws or not (kind == "call_method" or isinstance(target, types.BuiltinFunctionType))
        refusal = _refusal(kind, target, few(tuple(args)), few(tuple(kwargs.items())), draws)
    except (_Untried, TypeError):  # or what has no hash
        return
    if refusal is not None:
        raise FakeFailure(refusal)


def _is_of_torch(target: Any) -> bool:
    """Whether a function is PyTorch's own, or an operator, so that running it changes nothing else."""
    if isinstance(target, torch_compat.OP_TYPES):
        return str(target).startswith("aten.")
    module = getattr(target, "__module__", None) or type(getattr(target, "__self__", None)).__module__
    return isinstance(target, (types.FunctionType, types.BuiltinFunctionType)) and module.partition(".")[0] in OWNERS


def _is_unusual(operation: ops.Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Fake):
            if arg.dtype not in USUAL:
                return True
        elif isinstance(arg, (list, tuple)) and any(isinstance(one, Fake) and one.dtype not in USUAL for one in arg):
            return True
    return operation.draws and kwargs.get("dtype") not in (None, *USUAL)


def _is_on_cpu(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a trial is made there: a kernel of a GPU would draw numbers of a generator that is not put back."""
    device = kwargs.get("device")
    if device is None and not any(map(_holds_tensor, (*args, *kwargs.values()))):
        device = torch_compat.device_of_tensor_types()
    return device is None or torch.device(device).type == "cpu"


def _holds_tensor(value: Any) -> bool:
    return any(map(_holds_tensor, value)) if isinstance(value, (list, tuple)) else isinstance(value, Fake)


def _elements(value: Any) -> int:
    if isinstance(value, Fake):
        return math.prod(int(hint(size)) for size in value.shape)
    return sum(map(_elements, value)) if isinstance(value, (list, tuple)) else 0


def _few(value: Any, most: int, largest: int) -> Any:
    """An argument in a form that has a hash, with at most so many elements along a dimension, and no number above what
    could be a size."""
    if isinstance(value, Fake):
        if value.device.type != "cpu":
            raise _Untried
        return Few(value.dtype, tuple(min(int(hint(size)), most) for size in value.shape))
    if type(value) in (list, tuple):
        items = tuple(_few(one, most, largest) for one in value)
        numbers = (one for one in items if type(one) is int)
        if math.prod(numbers) > LARGEST:
            raise _Untried
        return Many(type(value), items)
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        value = hint(value)
    if not isinstance(value, KEPT) or (type(value) is int and value > largest):
        raise _Untried
    return value


def _made(value: Any) -> Any:
    if isinstance(value, Few):
        return value.tensor()
    return value.kind(map(_made, value.items)) if isinstance(value, Many) else value


@functools.cache
def _refusal(kind: str, target: Any, args: Many, kwargs: Many, draws: bool) -> Exception | None:
    """The error of a kernel that is not written for such dtypes. Only what may draw random numbers has them put back:
    another thread may draw some meanwhile, and would draw them twice."""
    state = torch.get_rng_state() if draws else None
    try:
        with torch.no_grad(), torch.inference_mode(False), torch_compat.without_function_modes():
            first, *others = values = _made(args)
            call: Callable[..., Any] = getattr(first, target) if kind == "call_method" else target
            call(*(others if kind == "call_method" else values), **dict(_made(kwargs)))
    except (RuntimeError, TypeError) as error:  # one that is not implemented is of the first kind
        return RuntimeError(said(error)) if REFUSAL.search(str(error).lower()) else None
    except Exception:  # that is of the elements
        return None
    finally:
        if state is not None:
            torch.set_rng_state(state)
    return None
