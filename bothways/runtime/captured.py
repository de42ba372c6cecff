"""What the capture layer and the backends give, as the runtime sees them from below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from bothways.errors import Break
from bothways.runtime.program import Check, Program
from bothways.runtime.resume import Continuation


class Captured(Protocol):
    """What the capture layer gives: a Program and the graph it calls."""

    program: Program
    graph: Any
    inputs: list[torch.Tensor]
    graph_key: str
    escaped: Break | None
    broke: Break | None
    continuations: tuple[Continuation, ...]

    def late_checks(self) -> tuple[Check, ...]: ...


Capturer = Callable[..., Captured]
GraphCompiler = Callable[[Any, list[torch.Tensor]], Callable[..., Any]]
