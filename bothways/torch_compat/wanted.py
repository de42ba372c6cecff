"""What the autograd engine wants of a node whose backward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch._C as _C
from torch.autograd.function import AUTOGRAD_FUNCTION_COUNTER

_will_run: Callable[[Any], bool] = _C._will_engine_execute_node


class WantedGradients:
    """Which gradients the engine wants of a node whose backward runs, asked run after run.

    ``autograd.grad(y, x)`` comes to everything behind ``y``, and asks for what leads to ``x``. About a leaf that it is
    called with the engine answers with an error, which takes longer than all the rest. So where the other answers are
    those of a run in which the leaf was wanted, it is taken to be wanted again: the engine lets a gradient fall that it
    does not want. Not where answers have to be ``exact``.
    """

    def __init__(self, exact: bool = False) -> None:
        self._is_exact = exact
        self.number = next(AUTOGRAD_FUNCTION_COUNTER)  # neither another graph's nor a custom function's, ever
        self._leaves: frozenset[int] = frozenset()  # the places where there was an error
        self._with_leaves: set[tuple[bool, ...]] = set()  # answers, with True in those places

    def of(self, node: Any) -> tuple[bool, ...]:
        following = node.next_functions
        if self._leaves:
            wanted = self._answers(following, self._leaves)
            if wanted in self._with_leaves:
                return wanted
        wanted = self._answers(following, frozenset())
        if self._leaves and all(wanted[place] for place in self._leaves):
            self._with_leaves.add(wanted)
        return wanted

    def _answers(self, following: Sequence[Any], unasked: frozenset[int]) -> tuple[bool, ...]:
        wanted = []
        for place, (function, _) in enumerate(following):
            try:
                wanted.append(function is not None and (place in unasked or _will_run(function)))
            except RuntimeError:  # its gradient is taken, and not accumulated
                wanted.append(True)
                if not self._is_exact:
                    self._leaves |= {place}
        return tuple(wanted)
