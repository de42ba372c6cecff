"""What is kept for a backward where people outside hold it too, and may change it: by custom functions, and of inputs
that the graph itself changes.

Eager checks whatever a function saved when the function asks for it, read or not, and reads what is on a context as it
is at that moment. An input that was saved after its change is checked as the input that it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.tracing.trace import Recorder

_ASKING = frozenset({"saved_tensors", "saved_variables"})

# Nodes of autograd's whose formula reads less of what they keep where it is traced than where it runs: products and
# their running ones are worked out without their results there. Eager checks all that they keep.
_READING_LESS = frozenset({"ProdBackward0", "ProdBackward1", "CumprodBackward0"})


@dataclass(frozen=True)
class Keeping:
    """Values of the forward: those that were saved and are ``asked`` for, by custom functions or by formulas that do
    not read them where they are traced; those that contexts have ``held``, and, where there are such, all that were
    ``saved``. ``changed`` are inputs that were changed and then saved, ``changed_held`` those that are only held."""

    asked: frozenset[torch.fx.Node] = frozenset()
    held: frozenset[torch.fx.Node] = frozenset()
    saved: frozenset[torch.fx.Node] = frozenset()
    changed: frozenset[int] = frozenset()
    changed_held: frozenset[int] = frozenset()


NOTHING_KEPT = Keeping()


def keeping(
    recorder: Recorder, nodes: Iterable[Any], wrapped: Sequence[torch.Tensor], changed: Iterable[int]
) -> Keeping:
    """What the autograd ``nodes`` of a forward keep; ``wrapped`` are its inputs, some of which it has changed.

    Raises ``RuntimeError`` where something was changed since it was saved.
    """
    nodes = list(nodes)
    custom = [node for node in nodes if isinstance(node, torch.autograd.function.BackwardCFunction)]
    held = [tensor for node in custom for tensor in _tensors(vars(node))]
    asking = [node for node in custom if _asks(node)]
    asking += [node for node in nodes if type(node).__name__ in _READING_LESS]
    asked = [tensor for node in asking for tensor in torch_compat.saved_tensors_of(node)]
    updated = {torch_compat.storage_identity(wrapped[place]): place for place in changed}
    if not (held or asked or updated):
        return NOTHING_KEPT
    saved: list[torch.Tensor] = []
    if held or updated:
        saved = [tensor for node in nodes for tensor in torch_compat.saved_tensors_of(node)]
    places = _places(updated, saved)
    return Keeping(
        _values(recorder, asked), _values(recorder, held), _values(recorder, saved),
        places, _places(updated, held) - places,
    )  # fmt: skip


def _asks(node: Any) -> bool:
    """Whether the backward of a custom function looks at what was saved."""
    cls = node._forward_cls
    codes = (getattr(getattr(cls, name, None), "__code__", None) for name in ("backward", "vjp"))
    return any(code is not None and _ASKING.intersection(code.co_names) for code in codes)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _values(recorder: Recorder, tensors: Iterable[torch.Tensor]) -> frozenset[torch.fx.Node]:
    known = (torch_compat.from_functional(tensor) for tensor in tensors if torch_compat.is_strided(tensor))
    nodes = map(recorder.known, known)
    return frozenset(node for node in nodes if node is not None)


def _places(updated: dict[int, int], tensors: Iterable[torch.Tensor]) -> frozenset[int]:
    if not updated:
        return frozenset()
    memory = (torch_compat.storage_identity(tensor) for tensor in tensors if torch_compat.is_strided(tensor))
    return frozenset(updated[each] for each in memory if each in updated)
