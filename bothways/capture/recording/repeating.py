"""Whether a call can begin anew as plain Python where a graph finds data to be other than it was taken for.

Kernels write to inputs when all data was looked at. A graph that runs as captured has changed some by then, of which
there are copies (``runtime/kept_inputs.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch.fx

from bothways.capture.shapes.changes import acts_outside, written_roots
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.runtime.kept_inputs import MOST_ELEMENTS
from bothways.runtime.nodes import CHECKS
from bothways.symbols import hint

MOST_COPIED = 1 << 24  # elements of which there may be copies at each call


class Unrepeatable(Exception):
    """The graph relies on data and has by then changed what cannot be put back."""


def until_last_check(nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes that have run where the last check fails."""
    before = list(nodes)
    while before and before[-1].target not in CHECKS:
        before.pop()
    return before


def check_repeatable(nodes: Iterable[torch.fx.Node], inputs: Iterable[TensorValue]) -> None:
    """Make sure that what was changed where the last check fails can be put back."""
    before = until_last_check(nodes)
    changed = _changed(before, inputs)
    if _stays_changed(before, changed) or sum(map(_elements, changed)) > MOST_COPIED:
        raise Unrepeatable


def leaves_changed(nodes: Iterable[torch.fx.Node], inputs: Iterable[TensorValue]) -> bool:
    """Whether something that the nodes change is not put back where the last of them fails on its data."""
    before = list(nodes)
    changed = _changed(before, inputs)
    return _stays_changed(before, changed) or any(_elements(value) > MOST_ELEMENTS for value in changed)


def changes_computed(nodes: Iterable[torch.fx.Node], inputs: Iterable[TensorValue]) -> bool:
    """Whether the nodes change an input that has a history, which is never put back."""
    computed = list(filter(_is_computed, inputs))
    return bool(computed) and bool(_changed(list(nodes), computed))


def _changed(nodes: list[torch.fx.Node], inputs: Iterable[TensorValue]) -> list[TensorValue]:
    written = frozenset[torch.fx.Node]().union(*written_roots(nodes))
    return [value for value in inputs if value.placeholder in written]


def _stays_changed(nodes: list[torch.fx.Node], changed: list[TensorValue]) -> bool:
    return any(map(acts_outside, nodes)) or any(map(_is_computed, changed))


def _elements(value: TensorValue) -> int:
    return math.prod(map(hint, value.fake.shape))


def _is_computed(value: TensorValue) -> bool:
    """Whether autograd knows how a tensor was computed, which writing to it does not undo."""
    fake = value.fake
    return fake.requires_grad and (fake.refusal is not None or not fake.meta.is_leaf)
