"""What is kept for a backward where people outside hold it too, and may change it: by eager's nodes and by custom
functions, and of inputs that the graph itself changes.

Eager checks whatever a node of its own has saved, read or not, and what a custom function saved when it asks for it; it
reads what is on a context as it is at that moment. An input that was saved after its change is checked as the input
that it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.tracing.saving import Way
from bothways.grad.tracing.trace import Recorder

_ASKING = frozenset({"saved_tensors", "saved_variables"})


@dataclass(frozen=True)
class Keeping:
    """Values of the forward: those that were saved and are ``asked`` for, read or not, with the backwards that do so;
    those that contexts have ``held``, and, where there are such, all that were ``saved``. ``changed`` are inputs that
    were changed and then saved, ``changed_held`` those that are only held."""

    asked: Mapping[torch.fx.Node, frozenset[Way]] = field(default_factory=dict)
    held: frozenset[torch.fx.Node] = frozenset()
    saved: frozenset[torch.fx.Node] = frozenset()
    changed: frozenset[int] = frozenset()
    changed_held: frozenset[int] = frozenset()


    @property
    def reads_outside(self) -> bool:
        """Whether a backward reads what is not its own: as it is then, or after a change in the forward."""
        return bool(self.held or self.changed or self.changed_held)

    def asked_between(self, results: int, inputs: int) -> set[torch.fx.Node]:
        """The values that a backward through some of the results, by some of the inputs, asks for."""
        return {
            value for value, ways in self.asked.items() if any(way[0] & results and way[1] & inputs for way in ways)
        }


NOTHING_KEPT = Keeping()


def keeping(
    recorder: Recorder, ways: Mapping[Any, Way], wrapped: Sequence[torch.Tensor], changed: Iterable[int]
) -> Keeping:
    """What the autograd nodes of a forward keep, which ``ways`` go through; ``wrapped`` are its inputs, some of which
    it has changed.

    Raises ``RuntimeError`` where something was changed since it was saved.
    """
    custom = [node for node in ways if isinstance(node, torch.autograd.function.BackwardCFunction)]
    held = [tensor for node in custom for tensor in _tensors(vars(node))]
    updated = {torch_compat.storage_identity(wrapped[place]): place for place in changed}
    saved: list[torch.Tensor] = []
    if held or updated:
        saved = [tensor for node in ways for tensor in torch_compat.saved_tensors_of(node)]
    places = _places(updated, saved)
    return Keeping(
        _asked(recorder, ways), _values(recorder, held), _values(recorder, saved),
        places, _places(updated, held) - places,
    )  # fmt: skip


def _asked(recorder: Recorder, ways: Mapping[Any, Way]) -> dict[torch.fx.Node, frozenset[Way]]:
    asked: dict[torch.fx.Node, frozenset[Way]] = {}
    for node, way in ways.items():
        if _asks(node):
            for value in _values(recorder, torch_compat.saved_tensors_of(node)):
                asked[value] = asked.get(value, frozenset()) | {way}
    return asked


def _asks(node: Any) -> bool:
    """Whether a backward looks at what was saved: one of the user's, where its code does."""
    is_of_users = isinstance(node, torch.autograd.function.BackwardCFunction)
    if not is_of_users:
        return True
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
