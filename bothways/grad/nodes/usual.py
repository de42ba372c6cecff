"""The backwards that ran last, each with what it was made for as one question to C: gradients that are laid out the
same way, and the state in which a compiled backward may run at all.

Nearly every backward of a training loop is like one of the step before. Where the answer is no, or there is no C, the
node looks at everything in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.call_library import call_library
from bothways.calls.guard_rows import Row, facts_of
from bothways.config import config

# What is asked of the interpreter besides whether gradients are followed, and what must be the answer.
STATE = ((torch_compat.is_any_autocast_enabled, False), (torch_compat.function_mode_depth, 0))
# A step of second derivatives goes back through one graph in so many ways.
MOST_USUAL = 4

Run = Callable[[list[Any]], Sequence[torch.Tensor | None]]
Tangents = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class UsualBackward:
    """A compiled backward that takes a list, whether it is the one for these gradients and this moment, and which
    inputs it gives gradients of.

    Of one that is differentiated in turn, ``moving`` says which of what it takes need gradients themselves.
    """

    holds: Callable[..., bool]
    run: Run
    wanted: tuple[bool, ...]
    moving: tuple[bool, ...] | None = None


class Usuals:
    """The usual backwards of one graph, the newest first."""

    def __init__(self) -> None:
        self.newest: tuple[UsualBackward, ...] = ()
        self._known: dict[Any, UsualBackward | None] = {}

    def note(
        self,
        key: Any,
        tangents: Tangents,
        run: Run,
        wanted: tuple[bool, ...],
        moving: tuple[bool, ...] | None = None,
    ) -> None:
        """Remember a backward that has just been found for plain gradients; ``key`` says what it was found by."""
        if key not in self._known:
            self._known[key] = usual(tangents, run, wanted, moving)
        known = self._known[key]
        if known is not None and known not in self.newest:
            self.newest = (known, *self.newest[: MOST_USUAL - 1])


def usual(
    tangents: Tangents, run: Run, wanted: tuple[bool, ...], moving: tuple[bool, ...] | None = None
) -> UsualBackward | None:
    """What is to be remembered of a backward; None without C."""
    library = call_library() if config.guards_in_c else None
    if library is None or any(tangent is not None and type(tangent) is not torch.Tensor for tangent in tangents):
        return None
    rows: list[Row] = []
    for place, tangent in enumerate(tangents):
        if tangent is None:
            rows.append(Row("IS", start=place, object=None))
        else:
            rows += [Row("TYPE", start=place, object=torch.Tensor), Row("TENSOR", start=place, data=facts_of(tangent))]
    slots = len(tangents)
    for ask, answer in ((torch_compat.is_grad_enabled, moving is not None), *STATE):
        rows += [Row("CALL", to=slots, object=ask), Row("EQUAL", start=slots, object=answer)]
        slots += 1
    return UsualBackward(library.check(rows, slots, len(tangents)), run, wanted, moving)
