"""What a graph is differentiated with: decided once by the backend, and handed down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways.grad.halves.facts import FactMemo
from bothways.grad.tracing.sizes import Sizes
from bothways.grad.tracing.trace import Decompositions
from bothways.runtime.nodes import Reads

Compiler = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]


@dataclass(frozen=True)
class GradPlan:
    """What compiles a graph's halves, what its custom functions read, what is remembered of it, its symbols; and which
    of its inputs the user never sees. Without ``kernels`` each operation is a call of ATen's; what ``goes_back`` has
    backwards inside; and what ``keeps_all`` computes nothing again of what may have changed."""

    fw_compiler: Compiler
    bw_compiler: Compiler
    reads: Sequence[Reads]
    memo: FactMemo | None
    sizes: Sizes
    expected: tuple[torch.Tensor | None, ...] | None = None  # laid out like the outputs, where images may be turned
    ours: frozenset[int] = frozenset()
    renewed: tuple[int, ...] = ()  # inputs whose new values the function gives behind its other outputs
    plain: Callable[..., Any] | None = None  # what changes them itself
    decompositions: Decompositions | None = None  # operations that are recorded as what others do
    kernels: bool = True
    goes_back: bool = False
    keeps_all: bool = False
