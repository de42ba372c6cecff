"""Why a guard failed, in PyTorch's words: for a ``guard_fail_fn`` that programs pass to ``optimize``.

Ours speak of a module's arguments by place, since a compiled module is called with ``*args``; theirs name them as its
``forward`` does, and say of a tensor what did not match.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bothways.record import generated

_ARGUMENT = r"L\['(\w+)'\]"
_PLACE = re.compile(r"L\['args'\]\[(\d+)\]")
_SAME = re.compile(rf"^{_ARGUMENT} is {_ARGUMENT}(?!\w|\[)")
_NEEDS = re.compile(rf"^(not )?({_ARGUMENT})\.requires_grad(?!\w)")


@dataclass(frozen=True)
class GuardFail:
    """What a ``guard_fail_fn`` is told: the guard that did not hold. It can be taken apart like a tuple, too."""

    reason: str
    orig_code: Any = None

    def __getitem__(self, index: int) -> Any:
        return (self.reason, self.orig_code)[index]


def telling_why(backend: Callable[..., Any], guard_fail_fn: Callable[[GuardFail], Any], fn: Any) -> Callable[..., Any]:
    """A backend that tells ``guard_fail_fn`` which guard failed whenever it is given one more graph for that."""
    names = parameters_of(fn)

    def tell(*args: Any, **kwargs: Any) -> Any:
        record = generated.current()
        if record is not None and record.failed_guard is not None:
            guard_fail_fn(GuardFail(in_their_words(record.failed_guard, names)))
        return backend(*args, **kwargs)

    return tell


def parameters_of(fn: Any) -> list[str]:
    """The names of a function's positional arguments, of a module's ``forward``."""
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):
        return []
    return [name for name, each in signature.parameters.items() if each.kind is not each.VAR_POSITIONAL]


def in_their_words(reason: str, names: list[str]) -> str:
    """A guard of ours as PyTorch says it, where it has words of its own."""
    places = dict(enumerate(names))
    reason = _PLACE.sub(lambda match: f"L[{places[int(match[1])]!r}]" if int(match[1]) in places else match[0], reason)
    reason = _SAME.sub(functools.partial(_in_order, names), reason)
    return _NEEDS.sub(_mismatch, reason)


def _in_order(names: list[str], match: re.Match[str]) -> str:
    pair = sorted(match.groups(), key=lambda name: names.index(name) if name in names else len(names))
    return f"L[{pair[0]!r}] is L[{pair[1]!r}]"


def _mismatch(match: re.Match[str]) -> str:
    return f"tensor '{match[2]}' requires_grad mismatch. expected requires_grad={0 if match[1] else 1}"
