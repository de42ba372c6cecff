"""Training scripts as people write them, for benchmarks/programs.py.

Each module has ``build(compile)``: it makes a model, data and optimizers, compiles what the script's author would have
compiled, and gives the function that does step number ``n``, and the tensors that are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor

Compile = Callable[[Any], Any]


class Training(NamedTuple):
    """One step, which gives its loss, and what it trains."""

    step: Callable[[int], Tensor]
    trained: Iterable[Tensor]
