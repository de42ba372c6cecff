"""Answers operations on thin tensors from the tables, and makes what factories make thin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from bothways import torch_compat
from bothways.fake.kernels import by_kernel
from bothways.fake.rules import ForEach, rule_for
from bothways.fake.tensor import NeedsData, NotThin, Spec, ThinMemory, ThinTensor, fresh, thin_like
from bothways.symbols import SYMBOLIC
from bothways.torch_compat import DispatchMode

CPU = torch.device("cpu")

# What a rule stumbles with over arguments its author did not think of, mostly such as PyTorch refuses as well.
UNFORESEEN = (TypeError, IndexError, ValueError, AttributeError, KeyError, ZeroDivisionError)

_known: dict[Any, Callable[..., Any]] = {}


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` returns for thin arguments, and for real ones, which are constants of the program."""
    rule = _known.get(func)
    if rule is None:
        rule = _known[func] = _rule_of(func)
    if any(_is_real(arg) for arg in args):
        args = tuple(map(_thinned, args))
    if kwargs and any(_is_real(arg) for arg in kwargs.values()):
        kwargs = {name: _thinned(arg) for name, arg in kwargs.items()}
    try:
        result = rule(*args, **kwargs)
    except UNFORESEEN as error:
        raise NotThin(f"the rule for {func} did not foresee {args}, {kwargs}") from error
    kind = type(result)
    if kind is ThinTensor:
        return result
    if kind is ForEach:
        return [fresh(*item) for item in result]
    device = _device((*args, *kwargs.values()) if kwargs else args)
    if kind is Spec:
        return fresh(result, device)
    if kind is tuple or kind is list:
        return kind(fresh(item, device) if type(item) is Spec else item for item in result)
    return result


def _rule_of(func: Any) -> Callable[..., Any]:
    """The rule for an operation; what that leaves to PyTorch is asked of its kernels."""
    rule, kernel = rule_for(func), by_kernel(func)
    if rule is None:
        return _without_rule(func)
    return rule if kernel is None else _either(rule, kernel)


def _either(rule: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """For plain sizes PyTorch's fake tensors are asked instead, who look at more of what is refused."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        try:
            return rule(*args, **kwargs)
        except NeedsData:
            raise
        except (NotThin, *UNFORESEEN):
            if any(map(_is_symbolic, _flat((*args, *kwargs.values())))):
                return kernel(*args, **kwargs)
            raise

    return ask


def _without_rule(func: Any) -> Callable[..., Any]:
    """What is made of other operations everywhere is run as those; inference mode does not take it apart before."""
    if torch_compat.is_composite(func):

        def run_parts(*args: Any, **kwargs: Any) -> Any:
            with ThinTensor.fake_mode:
                return func.decompose(*args, **kwargs)

        return run_parts
    asked = by_kernel(func)
    if asked is not None:
        return asked

    def decline(*args: Any, **kwargs: Any) -> Any:
        raise NotThin(f"{func} has no rule")

    return decline


def _is_symbolic(arg: Any) -> bool:
    return torch_compat.has_symbolic_sizes(arg) if isinstance(arg, torch.Tensor) else isinstance(arg, SYMBOLIC)


def _is_real(arg: Any) -> bool:
    kind = type(arg)
    if kind is ThinTensor:
        return False
    if kind is list or kind is tuple:
        return any(map(_is_real, arg))
    return isinstance(arg, torch.Tensor)


def _thinned(arg: Any) -> Any:
    if type(arg) is ThinTensor:
        return arg
    if isinstance(arg, (list, tuple)):
        return type(arg)(map(_thinned, arg))
    if not isinstance(arg, torch.Tensor):
        return arg
    if arg.requires_grad:
        raise NotThin("a real tensor that wants a gradient is not a constant")
    return thin_like(arg)


def _device(args: Iterable[Any]) -> torch.device:
    """Where the result is: with the arguments, whom scalars on the CPU may accompany."""
    common: torch.device | None = None
    tensors = [arg for arg in _flat(args) if type(arg) is ThinTensor]
    for tensor in tensors:
        device = tensor.device
        if common is None:
            common = device
        elif device != common:
            return _device_of_mixed(tensors)
    return common or CPU


def _device_of_mixed(tensors: list[ThinTensor]) -> torch.device:
    devices = {tensor.device for tensor in tensors if tensor.dim() or tensor.device != CPU}
    if len(devices) > 1:
        raise NotThin("tensors on several devices")
    return devices.pop()


def _flat(args: Iterable[Any]) -> Iterator[Any]:
    for arg in args:
        if type(arg) is list or type(arg) is tuple:
            yield from arg
        else:
            yield arg


class ThinMode(DispatchMode):
    """Inside of it factories make thin tensors. ``from_tensor`` makes them from real ones."""

    def __init__(self) -> None:
        super().__init__()
        self._memory: dict[int, ThinMemory] = {}

    def from_tensor(self, tensor: torch.Tensor, outline: torch.Tensor | None = None) -> ThinTensor:
        """The thin tensor that stands for a real one, with the sizes and strides of ``outline`` where that is given."""
        return thin_like(tensor, self._memory, outline)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return answer(func, args, kwargs or {})


ThinTensor.answer = staticmethod(answer)
ThinTensor.fake_mode = ThinMode()
