"""Context managers used as decorators, and those that mean nothing to a compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.attention

from bothways import torch_compat


def decorate(context: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return decorated


def decorate_with_factory(make_context: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Each call enters a context of its own, so that the decorated function may call itself."""

    def decorated(*args: Any, **kwargs: Any) -> Any:
        with make_context():
            return function(*args, **kwargs)

    return decorated


class UnnamedRange:
    """``record_function``: a profiler sees a compiled program's kernels, not the ranges of the Python it came from."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args

    def __enter__(self) -> UnnamedRange:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return decorate(self, function)


class AttentionKernels:
    """``sdpa_kernel`` as an object: a generator in the middle of its work could not be handed over at a break."""

    def __init__(self, kernels: list[Any], set_priority: bool) -> None:
        self.kernels, self.set_priority = kernels, set_priority
        self.before: list[list[Any]] = []

    def __enter__(self) -> dict[str, Any]:
        self.before.append(torch_compat.attention_kernels(with_priority=self.set_priority))
        torch_compat.use_attention_kernels(self.kernels, self.set_priority)
        return {}

    def __exit__(self, *exception: object) -> None:
        torch_compat.use_attention_kernels(self.before.pop(), self.set_priority)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return decorate(self, function)


def sdpa_kernel(backends: list[Any] | Any, set_priority: bool = False) -> AttentionKernels:
    if not isinstance(backends, (list, torch.nn.attention.SDPBackend)):
        kind = type(backends).__name__
        message = "Backend must be an instance of SDPBackend or a list of SDPBackend instances, got "
        raise AssertionError(message + kind)
    if isinstance(backends, torch.nn.attention.SDPBackend):
        backends = [backends]
    return AttentionKernels(list(dict.fromkeys(backends)), set_priority)


STANDINS: dict[Any, Any] = {
    torch.autograd.profiler.record_function: UnnamedRange,
    torch.nn.attention.sdpa_kernel: sdpa_kernel,
}
