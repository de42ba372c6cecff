"""The backward that ran last, with what it was made for as one question to C: gradients that are laid out the same way,
and the state in which a compiled backward may run at all.

Nearly every backward of a training loop is like the one before. Where the answer is no, or there is no C, the node
looks at everything in turn.
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

# What is asked of the interpreter, and what must be the answer.
STATE = (
    (torch_compat.is_grad_enabled, False),
    (torch_compat.is_any_autocast_enabled, False),
    (torch_compat.function_mode_depth, 0),
)


@dataclass(frozen=True)
class UsualBackward:
    """A compiled backward that takes a list, whether it is the one for these gradients and this moment, and which
    inputs it gives gradients of."""

    holds: Callable[..., bool]
    run: Callable[[list[Any]], Sequence[torch.Tensor | None]]
    wanted: tuple[bool, ...]


def usual(
    tangents: Sequence[torch.Tensor | None], run: Callable[..., Any], wanted: tuple[bool, ...]
) -> UsualBackward | None:
    """What is to be remembered of a backward that has just been found for plain gradients; None without C."""
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
    for ask, answer in STATE:
        rows += [Row("CALL", to=slots, object=ask), Row("EQUAL", start=slots, object=answer)]
        slots += 1
    return UsualBackward(library.check(rows, slots, len(tangents)), run, wanted)
